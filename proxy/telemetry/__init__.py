"""Metrics, the access log and the log."""
