"""The field: who is measured, by which rule each chooses, and how it is started.

A peer is written NAME or NAME:RULE, the rule in that proxy's own words; without one it is the
best that it has for prompts of unequal length and no prefix in common.
"""

from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from penstock.bench.peers import envoy, haproxy, litellm, nginx, ours, rust_routers
from penstock.bench.peers.peer import Running, Start
from penstock.bench.processes import NotStarted, stop


@dataclass(frozen=True, slots=True)
class Kind:
    """A proxy: how it is started, its rules, the first of which it is given when none is named."""

    start: Start
    rules: tuple[str, ...]


FIELD: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "penstock": Kind(
            ours.start_penstock,
            (
                "token_cost",
                "least_tokens",
                "session",
                "least_requests",
                "round_robin",
                "power_of_two",
                "peak_ewma",
                "token_cost+at_once",
            ),
        ),
        "nginx": Kind(nginx.start, ("least_conn", "round_robin", "session")),
        "HAProxy": Kind(haproxy.start, ("leastconn", "roundrobin", "hdr(x-session-id)")),
        "Envoy": Kind(envoy.start, ("LEAST_REQUEST", "ROUND_ROBIN", "RING_HASH")),
        "smg": Kind(
            rust_routers.start_smg,
            ("power_of_two", "cache_aware", "least_load", "round_robin", "consistent_hashing"),
        ),
        "vllm-router": Kind(
            rust_routers.start_vllm_router,
            ("kv_aware", "cache_aware", "power_of_two", "round_robin", "consistent_hash"),
        ),
        "LiteLLM": Kind(litellm.start, ("simple-shuffle", "least-busy")),
        "aiohttp": Kind(ours.start_aiohttp, ("",)),
    }
)


class UnknownPeer(ArgumentTypeError):
    """There is no such proxy or rule; the text names those that are there."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One proxy with one rule."""

    name: str
    rule: str

    @property
    def label(self) -> str:
        return f"{self.name} {self.rule}".strip()

    @classmethod
    def parsed(cls, text: str) -> "Peer":
        """NAME or NAME:RULE. Raises UnknownPeer."""
        asked, _, rule = text.strip().partition(":")
        name = next((name for name in FIELD if name.lower() == asked.lower()), None)
        if name is None:
            raise UnknownPeer(f"no such peer: {asked}; there are {', '.join(FIELD)}")
        rules = FIELD[name].rules
        if rule and rule not in rules:
            raise UnknownPeer(f"{name} has no rule {rule}; there are {', '.join(rules)}")
        return cls(name, rule or rules[0])

    def start(self, backends: Sequence[int], folder: Path) -> Running:
        """Start it; `folder` is its own. Raises NotStarted."""
        return FIELD[self.name].start(backends, folder, self.rule)


def peers(text: str) -> list[Peer]:
    """For argparse: peers with commas between, each once. Raises UnknownPeer."""
    return list(dict.fromkeys(map(Peer.parsed, text.split(","))))


def start_all(
    peers: Sequence[Peer], backends: Sequence[int], folder: Path, stack: ExitStack
) -> tuple[dict[Peer, Running], dict[Peer, str]]:
    """Start peers, which `stack` stops; those that cannot run, with the reason."""
    running: dict[Peer, Running] = {}
    missing: dict[Peer, str] = {}
    for number, peer in enumerate(peers):
        own = folder / str(number)
        own.mkdir()
        try:
            running[peer] = peer.start(backends, own)
        except NotStarted as error:
            missing[peer] = str(error)
        else:
            stack.callback(stop, running[peer].process)
    return running, missing
