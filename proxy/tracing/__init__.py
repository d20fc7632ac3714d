"""Traces: which requests are traced, their spans, and how these come to a receiver."""
