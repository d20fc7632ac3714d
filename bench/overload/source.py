"""Who sends what in a cell of the panel."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from random import Random
from typing import Final, Protocol

from penstock.bench.overload.calls import Call, Clients, Loop, poisson
from penstock.bench.overload.mixes import H100, Mix
from penstock.bench.report import BenchError
from penstock.bench.routing.load import fitting, speedup
from penstock.bench.routing.servegen import sample
from penstock.bench.routing.trace import Arrival, opened
from penstock.bench.sim.profiles import Gpu

# They wait for as long as it takes, and do not come again when they are refused.
PATIENT: Final = Clients(patience_s=60.0, retries=0, high_share=0.0)
TRACE_S: Final = 600.0


class Source(Protocol):
    """Where calls come from."""

    @property
    def clients(self) -> Clients: ...

    def calls(self, length_s: float, rng: Random) -> Sequence[Call]:
        """All, in a closed loop the first ones. Raises BenchError."""
        ...


@dataclass(frozen=True, slots=True)
class Open:
    """Calls that come at random. `load`: of the mix's capacity. `spans`: when they come."""

    mix: Mix
    load: float
    clients: Clients = PATIENT
    spans: tuple[tuple[float, float], ...] = ((0.0, inf),)

    def calls(self, length_s: float, rng: Random) -> list[Call]:
        def rate(at_s: float) -> float:
            comes = any(from_s <= at_s < to_s for from_s, to_s in self.spans)
            return self.load * self.mix.capacity_per_s if comes else 0.0

        return poisson(self.mix, rate, length_s, rng, self.clients)


@dataclass(frozen=True, slots=True)
class Closed:
    """So many clients of which each has one call at a time."""

    mix: Mix
    count: int
    clients: Clients = PATIENT
    think_s: float = 0.0

    def calls(self, length_s: float, rng: Random) -> list[Call]:
        loops = [
            Loop(self.mix, self.clients, self.think_s, length_s, Random(rng.random()))
            for _ in range(self.count)
        ]
        firsts = [loop.first() for loop in loops]
        return [call for call in firsts if call is not None]


@dataclass(frozen=True, slots=True)
class Steady:
    """The same call every `every_s`, from `from_s` on."""

    prompt_tokens: int
    output_tokens: int
    every_s: float
    clients: Clients = PATIENT
    from_s: float = 0.0

    def calls(self, length_s: float, rng: Random) -> list[Call]:
        mix = Mix("steady", H100, lambda _: (self.prompt_tokens, self.output_tokens), 1.0)
        count = max(0, int((length_s - self.from_s) / self.every_s))
        return [self.clients.call(mix, self.from_s + i * self.every_s, rng) for i in range(count)]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What ServeGen's clients would send, at this load of so many engines. Each is a tenant."""

    path: Path
    load: float
    profile: Gpu
    engines: int
    clients: Clients = PATIENT

    def calls(self, length_s: float, rng: Random) -> list[Call]:
        try:
            lines = _lines(self.path)
        except OSError as error:
            raise BenchError(f"no trace: {error}") from None
        arrivals = fitting(sample(lines, TRACE_S, rng), self.profile)
        faster = speedup(arrivals, self.profile, self.engines, self.load)
        played = [each._replace(at_s=each.at_s / faster) for each in arrivals]
        return [self._call(each) for each in played if each.at_s < length_s]

    def _call(self, arrival: Arrival) -> Call:
        clients = self.clients
        prompt, output, tenant = arrival.prompt_tokens, arrival.output_tokens, arrival.tenant
        return Call(
            arrival.at_s, prompt, output, clients.rank, tenant, clients.patience_s, clients.retries
        )


@cache
def _lines(path: Path) -> list[str]:
    with opened(path) as lines:
        return list(lines)
