"""Which pool and model answer a request. Pure: time and randomness are arguments."""
