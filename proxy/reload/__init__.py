"""Where a configuration is read from, and how a new one replaces it."""
