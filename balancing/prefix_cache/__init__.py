"""What a backend's prefix cache holds of prompts, as far as our own traffic tells."""
