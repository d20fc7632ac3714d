"""penstock: a token-aware sidecar proxy in front of a fleet of vLLM servers.

This package is the data plane, the admin port and the command line. Only this package connects
`conf`, `balancing` and `health`.
"""

from importlib.util import find_spec

__version__ = "0.1.0"


def compiled() -> bool:
    """Whether the data path runs as C extensions (ARCHITECTURE.md, "Compiled")."""
    spec = find_spec("penstock.proxy.data.relay")
    in_c = all(find_spec(f"penstock.{package}._native") for package in ("balancing", "proxy.wire"))
    return in_c and spec is not None and not (spec.origin or ".py").endswith(".py")


def build() -> str:
    """Which of the two builds this is."""
    return "compiled" if compiled() else "interpreted"
