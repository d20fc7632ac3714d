"""Backends that are ready, and a gate before them."""

from collections.abc import Sequence
from random import Random

from penstock.balancing.backend import Backend, State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.policies import POLICIES

# The policies that go by how much backends have to do.
LOAD_READING = ("least_requests", "power_of_two", "peak_ewma", "least_tokens", "session")


def ready(name: str = "a", weight: float = 1.0) -> Backend:
    backend = Backend(name, f"http://{name}:1", weight=weight)
    backend.state = State.READY
    return backend


def numbered(count: int) -> list[Backend]:
    """Ready ones: b0, b1 and so on."""
    return [ready(f"b{number}") for number in range(count)]


def gate_over(backends: Sequence[Backend], policy: str = "least_tokens", seed: int = 1) -> Gate:
    """Before one pool with these backends."""
    fleet = Fleet((Pool("default", tuple(backends), POLICIES[policy](backends)),))
    return Gate(lambda: fleet, Random(seed))


def answered(lease: Lease, now_s: float) -> None:
    """With one token."""
    lease.first_token(now_s)
    lease.complete(now_s)
