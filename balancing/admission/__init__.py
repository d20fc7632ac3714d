"""Who is sent now, who waits and who is refused. Pure: time and randomness are arguments."""
