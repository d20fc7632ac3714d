"""The command line: `serve`, `check`, `status` and the others."""
