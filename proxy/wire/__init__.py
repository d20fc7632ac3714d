"""Bytes: heads and framing, TLS, connections to backends and their pool."""
