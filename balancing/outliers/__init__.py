"""Failing backends: whose fault a failure is, what it costs, and requests that crash engines."""
