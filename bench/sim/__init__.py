"""A simulated vLLM server: its HTTP dialects, its engine's arithmetic, and its ways to fail."""
