"""`penstock demo --break`: one thing goes wrong while somebody looks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from penstock.bench.sim.faults import FaultKind
from penstock.bench.sim.job import Manner, Span
from penstock.bench.sim.profiles import PROFILES, Profile
from penstock.bench.sim.server import SimServer

# So long all is well, so that the change shows.
BREAKS_AFTER_S: Final = 15.0
_USUAL: Final = PROFILES["default"]
_SLOW: Final = 0.1


class Break(NamedTuple):
    """`act`: what is done to the servers. `crowd`: clients of the tenant `crawler` that come then,
    with answers of `crowd_tokens`. `keyed`: clients have keys. `from_start`: it is so at once."""

    means: str
    act: Callable[[Sequence[SimServer]], None] = lambda servers: None
    crowd: int = 0
    crowd_tokens: tuple[int, int] = (24, 220)
    keyed: bool = False
    from_start: bool = False
    profile: Profile = _USUAL


def _slow(servers: Sequence[SimServer]) -> None:
    servers[0].pump.speedup = _SLOW


def _hang(servers: Sequence[SimServer]) -> None:
    for kind in (FaultKind.HANG_BEFORE_HEADERS, FaultKind.HANG_MID_STREAM):
        servers[0].faults.set(kind)


def _fail(servers: Sequence[SimServer]) -> None:
    servers[0].faults.set(FaultKind.INTERNAL_ERROR)


def _think(servers: Sequence[SimServer]) -> None:
    for each in servers:
        each.manner = Manner(hidden_tokens=Span(150, 250))


def _load(servers: Sequence[SimServer]) -> None:
    for each in servers:
        each.faults.set(FaultKind.HEALTH_503)


BREAKS: Final = {
    "slow": Break("the first server becomes ten times slower", _slow, crowd=12),
    "hung": Break("the first server accepts requests and answers none; its /health goes on", _hang),
    "errors": Break("the first server answers 500", _fail),
    "kv": Break(
        "KV caches are too small for the clients that come",
        crowd=24,
        crowd_tokens=(600, 1_200),
        profile=replace(_USUAL, name="small caches", kv_tokens=16_384),
    ),
    "flood": Break(
        "one tenant sends far more than its share",
        crowd=80,
        keyed=True,
        profile=replace(_USUAL, name="few seats", max_num_seqs=8),
    ),
    "thinking": Break("first tokens come late, and nothing waits: the SLO is missed", _think),
    "cold": Break("all servers load, for 30 to 60 s", _load, from_start=True),
}
