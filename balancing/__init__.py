"""Chooses a backend for each request: pure, synchronous arithmetic on tokens.

Nothing in this package awaits, reads a clock, draws from the global random or
logs; `now_s` and `rng` are arguments. Counters change only through a `Lease`.
"""
