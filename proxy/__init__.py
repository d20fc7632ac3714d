"""penstock: a token-aware sidecar proxy in front of a fleet of vLLM servers.

This package is the data plane, the admin port and the command line; it is the
only one that wires `conf`, `balancing` and `health` together.
"""

__version__ = "0.1.0"
