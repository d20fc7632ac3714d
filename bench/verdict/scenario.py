"""A fleet with one known cause of slowness: its servers, its traffic, and what happens to it.

Scenarios are played over HTTP in real time. Truth is written beside each, before it is played.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Before this time the fleet has only the traffic that begins at once: it gets warm.
ONSET_S = 12.0
# From the onset, the verdict must be right by then.
WITHIN_S = 20.0


@dataclass(frozen=True, slots=True)
class Server:
    """One simulated server: options of `penstock sim`. `starts_s`: None if never."""

    profile: str = "8b-1xh100"
    speedup: float = 1.0
    kv_tokens: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    api_ms: float = 0.0
    starts_s: float | None = 0.0
    stops_s: float | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests of one tenant, at random times. Sizes are drawn evenly between their bounds.

    `prefix_tokens`: so many of each prompt are the same for all of this traffic.
    `read_bytes_per_s`: how fast its clients read. None: at once.
    """

    rate_per_s: float
    prompt_tokens: tuple[int, int] = (200, 400)
    answer_tokens: tuple[int, int] = (20, 60)
    tenant: str = "app"
    session: str | None = None
    prefix_tokens: int = 0
    choices: int = 1
    stream: bool = True
    read_bytes_per_s: float | None = None
    from_s: float = 0.0
    until_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of `/sim/faults` that a server has from then on."""

    at_s: float
    server: int
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scenario:
    """`truth`: the kinds that are right, the best one first. `tenant`: whom it must name, too.

    `config`: further keys of the configuration; `pool`: further keys of the pool.
    """

    name: str
    truth: tuple[str, ...]
    servers: tuple[Server, ...]
    traffic: tuple[Traffic, ...]
    faults: tuple[Fault, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    pool: Mapping[str, Any] = field(default_factory=dict)
    tenant: str = ""
    length_s: float = ONSET_S + WITHIN_S + 3.0
