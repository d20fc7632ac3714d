"""How fast backends are: estimates for each, and how they compare."""
