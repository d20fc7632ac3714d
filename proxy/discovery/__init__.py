"""Finds the backends of pools: what sources tell becomes part of the configuration."""
