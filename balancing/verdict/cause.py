"""The causes that a verdict can name, and what it says of one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause with its evidence.

    `detail`: which of the kind, such as `prefill`. `backend`, `tenant`: whom it is about, if that
    is one. `role`: what that tenant does: it `waits`, it `takes` the most of engines, it `holds`
    the most places, or it hardly `reads`. `figures`: the evidence, by name.
    """

    kind: Kind
    detail: str = ""
    backend: str = ""
    tenant: str = ""
    role: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


FINE = Finding(Kind.FINE)
