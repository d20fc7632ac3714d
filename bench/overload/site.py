"""What stands behind penstock, what is told of it, and which classes there are."""

from dataclasses import dataclass
from typing import Final

from penstock.bench.sim.profiles import Gpu

NETWORK_S: Final = 0.001


@dataclass(frozen=True, slots=True)
class Site:
    """`profiles`: one for each engine. `network_s`: until a request is there. `back_s`: until a
    token is here. `reports`: the engines' metrics are read. `tells_cache`: they have the size of
    the KV cache."""

    profiles: tuple[Gpu, ...]
    network_s: float = NETWORK_S
    back_s: float = 0.0
    reports: bool = True
    tells_cache: bool = True

    @property
    def round_trip_s(self) -> float:
        return self.network_s + self.back_s


@dataclass(frozen=True, slots=True)
class Class:
    """A class of requests. `share`: it has at least that. `impatient`: its clients leave at the
    deadline."""

    deadline_s: float
    share: float = 0.0
    impatient: bool = True
