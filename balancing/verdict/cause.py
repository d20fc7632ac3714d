"""The causes that a verdict can name, and what it says of one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    """What makes a pool slow. Alerts and dashboards know these words, so they stay as they are."""

    FINE = "fine"
    COMPUTE = "compute"  # the engines' arithmetic: prefill, or streams that are decoded
    MEMORY = "memory"  # their KV caches are full
    SCHEDULER = "scheduler"  # room is left, but engines do not take the requests up
    WAITING = "waiting"  # a limit or a tenant's share keeps them in penstock
    DEMAND = "demand"  # all is saturated
    UNEVEN = "uneven"  # one backend is slower, or has more to do, than its peers
    CLIENT = "client"  # clients do not read
    STARTING = "starting"
    FAILING = "failing"
    MISSED = "missed"  # nothing of the above, and yet a service level is not kept


class Missed(NamedTuple):
    """A service level that is critical, and why (`slo.words`)."""

    name: str
    because: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause with its evidence.

    `detail`: which of the kind, such as `prefill`. `backend`, `tenant`: whom it is about, if that
    is one. `role`: what that tenant does: it `waits`, it `takes` the most of engines, it `holds`
    the most places, or it hardly `reads`. `figures`: the evidence, by name. `missed`: the service
    levels that users of the pool do not get.
    """

    kind: Kind
    detail: str = ""
    backend: str = ""
    tenant: str = ""
    role: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    missed: tuple[Missed, ...] = ()

    @property
    def by_state(self) -> bool:
        """Whether it follows from states, which do not flap. All else is measured."""
        out = self.kind is Kind.FAILING and self.figures.get("out", 0.0) > 0.0
        return out or self.kind in (Kind.STARTING, *CALM)


# Nothing slows the pool down now.
CALM: Final = (Kind.FINE, Kind.MISSED)
FINE = Finding(Kind.FINE)
