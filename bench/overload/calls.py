"""What users want: calls, each of one or more attempts, who sends them, and how SDKs repeat."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf
from pathlib import Path
from random import Random
from typing import Final, Protocol

from penstock.bench.overload.mixes import H100, STREAM, Mix, Shown
from penstock.bench.report import BenchError
from penstock.bench.routing.trace import Arrival, fitting, opened, random_times, sample, speedup
from penstock.bench.sim.profiles import Gpu

HIGH_SHARE: Final = 0.1
# As the OpenAI SDK does: it waits for 0.5 s, doubled each time, up to 8 s, less up to a quarter.
FIRST_S: Final = 0.5
LONGEST_S: Final = 8.0
SPREAD: Final = 0.25
# It honours a Retry-After up to this.
HINT_MAX_S: Final = 60.0
# Clients in a closed loop begin within this, and come again so long after a refusal.
LOOPS_BEGIN_S: Final = 2.0
REFUSED_S: Final = 1.0


@dataclass(slots=True)
class Call:
    """One call of a user. `rank`: its class. `patience_s`: how long it waits for a first token."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    rank: int = 1
    tenant: str = ""
    patience_s: float = 5.0
    retries: int = 2
    attempts: int = 0
    sent: int = 0  # attempts that were sent to an engine
    late: int = 0  # of these, without a first token in time
    refused: int = 0
    ttft_s: float = -1.0  # of the attempt that was answered
    tpot_s: float = 0.0
    good: bool = False
    beginning: int = 0  # which of the shared beginnings its prompt has. 0: none
    beginning_tokens: int = 0
    capped: int | None = None  # the most tokens that its last attempt was allowed
    max_tokens: int | None = None  # the most that its client asks for
    choices: int = 1
    shown: Shown = STREAM
    hidden_tokens: int = 0  # that come before the first one that is shown
    e2e_s: float = -1.0  # from its coming to the end of its answer
    loop: "Loop | None" = None  # its client sends the next one when it is over

    @property
    def answer_tokens(self) -> int:
        return self.output_tokens if self.capped is None else min(self.output_tokens, self.capped)


@dataclass(frozen=True, slots=True)
class Clients:
    """How they behave. `rank`: the class of those that are not of the high one. `tenants`: as many
    send in turn, at random."""

    patience_s: float = 5.0
    retries: int = 2
    high_share: float = HIGH_SHARE
    tenant: str = ""
    rank: int = 1
    tenants: int = 1
    max_tokens: int | None = None
    choices: int = 1
    shown: Shown = STREAM

    def call(self, mix: Mix, at_s: float, rng: Random) -> Call:
        """One of them asks."""
        prompt, output = mix.draw(rng)
        rank = 0 if rng.random() < self.high_share else self.rank
        call = Call(at_s, prompt, output, rank, self.tenant, self.patience_s, self.retries)
        if mix.beginnings:
            call.beginning = rng.randint(1, mix.beginnings)
            call.beginning_tokens = mix.beginning_tokens
            call.prompt_tokens += mix.beginning_tokens
        if self.tenants > 1:
            call.tenant = f"{self.tenant}-{rng.randrange(self.tenants)}"
        call.max_tokens, call.choices, call.shown = self.max_tokens, self.choices, self.shown
        if self.shown.hidden_tokens != (0, 0):
            call.hidden_tokens = rng.randint(*self.shown.hidden_tokens)
            call.output_tokens += call.hidden_tokens
        return call


def poisson(
    mix: Mix, rate: Callable[[float], float], length_s: float, rng: Random, clients: Clients
) -> list[Call]:
    """Calls that come at random, `rate(at_s)` in a second."""
    most = max(rate(float(second)) for second in range(int(length_s) + 1))
    times = random_times(length_s, most, rng)
    return [clients.call(mix, at, rng) for at in times if rng.random() * most < rate(at)]


class Loop:
    """A client that sends its next call when the last one is over, after `think_s` on average."""

    def __init__(
        self, mix: Mix, clients: Clients, think_s: float, until_s: float, rng: Random
    ) -> None:
        self._mix, self._clients, self._think_s = mix, clients, think_s
        self._until_s = until_s
        self._rng = rng

    def first(self) -> Call | None:
        """All do not begin in one moment."""
        return self._call(self._rng.uniform(0.0, LOOPS_BEGIN_S + self._think_s))

    def next(self, last: Call, now_s: float) -> Call | None:
        """None: it has had enough."""
        pause_s = self._rng.expovariate(1.0 / self._think_s) if self._think_s else 0.0
        if last.e2e_s < 0.0:
            pause_s = max(pause_s, REFUSED_S)
        return self._call(now_s + pause_s)

    def _call(self, at_s: float) -> Call | None:
        if at_s >= self._until_s:
            return None
        call = self._clients.call(self._mix, at_s, self._rng)
        call.loop = self
        return call


def delay_s(attempts: int, retry_after_s: float, rng: Random) -> float:
    """How long the SDK waits after so many attempts."""
    if 0.0 < retry_after_s <= HINT_MAX_S:
        return retry_after_s
    return min(LONGEST_S, FIRST_S * 2.0 ** (attempts - 1)) * (1.0 - SPREAD * rng.random())


@dataclass(slots=True)
class Log:
    """What happened in a run, with the time of each."""

    calls: list[Call] = field(default_factory=list)
    tokens: list[tuple[float, int]] = field(default_factory=list)  # computed and generated
    refusals: list[float] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)  # predicted, true


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
