"""What users want: calls, each of one or more attempts, and how an SDK repeats them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from penstock.bench.overload.mixes import Mix

HIGH_SHARE: Final = 0.1
# As the OpenAI SDK does: it waits for 0.5 s, doubled each time, up to 8 s, less up to a quarter.
FIRST_S: Final = 0.5
LONGEST_S: Final = 8.0
SPREAD: Final = 0.25
# It honours a Retry-After up to this.
HINT_MAX_S: Final = 60.0


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
    capped: int | None = None  # the most tokens that its last attempt was allowed

    @property
    def answer_tokens(self) -> int:
        """The length of its answer."""
        return self.output_tokens if self.capped is None else min(self.output_tokens, self.capped)


@dataclass(frozen=True, slots=True)
class Clients:
    """How they behave."""

    patience_s: float = 5.0
    retries: int = 2
    high_share: float = HIGH_SHARE
    tenant: str = ""


def poisson(
    mix: Mix, rate: Callable[[float], float], length_s: float, rng: Random, clients: Clients
) -> list[Call]:
    """Calls that come at random, `rate(at_s)` in a second."""
    calls: list[Call] = []
    at_s = 0.0
    most = max(rate(float(second)) for second in range(int(length_s) + 1))
    while True:
        at_s += rng.expovariate(most)
        if at_s >= length_s:
            return calls
        if rng.random() * most >= rate(at_s):
            continue
        prompt, output = mix.draw(rng)
        rank = 0 if rng.random() < clients.high_share else 1
        call = Call(at_s, prompt, output, rank, clients.tenant, clients.patience_s, clients.retries)
        if mix.beginnings:
            call.beginning = rng.randint(1, mix.beginnings)
            call.prompt_tokens += mix.beginning_tokens
        calls.append(call)


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
