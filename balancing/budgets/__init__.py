"""What a tenant may use, and what it has used. Pure: time is an argument."""
