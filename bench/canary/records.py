"""What requests look like at an engine of a given load, recorded once from the simulated engine.

A run of a canary has ten thousand requests and more, and a table has thousands of runs. So runs
draw from these records, with the queue and the streams that each request found.
"""

from dataclasses import replace
from functools import partial
from random import Random
from typing import Final, NamedTuple

from penstock.bench.overload.mixes import H100, MIXES
from penstock.bench.sim.engine import Engine, Sequence
from penstock.bench.virtual_time import Engines

MIX: Final = "uniform"
ENGINES: Final = 4  # of the mix's capacity
NOISE: Final = 0.1
LOADS: Final = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
LENGTH_S: Final = 900.0
WARM_S: Final = 30.0


class Seen(NamedTuple):
    prompt_tokens: int
    answer_tokens: int
    queued_tokens: int
    streams: int
    ttft_s: float
    itl_s: float


class _Owner:
    """What a request found when it came, and the time of its first token."""

    __slots__ = ("at_s", "first_s", "queued_tokens", "streams")

    def __init__(self, at_s: float, queued_tokens: int) -> None:
        self.at_s = at_s
        self.queued_tokens = queued_tokens
        self.streams = 0
        self.first_s = 0.0

    def token(self) -> None:
        """An engine's sequence has an owner with this."""


class _Recorded(Engines):
    """One engine, whose requests are written down."""

    def __init__(self, engine: Engine) -> None:
        super().__init__([engine])
        self.seen: list[Seen] = []

    def come(self, prompt: int, answer: int, now_s: float) -> None:
        waiting = [each for each in self.engines[0].sequences if not each.generated]
        queued = sum([each.prompt_tokens - each.computed for each in waiting])
        self._submit(0, Sequence(prompt, answer, _Owner(now_s, queued)), now_s)

    def emitted(self, index: int, sequences: list[Sequence], now_s: float) -> None:
        running = self.engines[0].running
        for each in sequences:
            owner = each.owner
            assert isinstance(owner, _Owner)
            if not owner.first_s:
                owner.first_s, owner.streams = now_s, running
            if each.done and owner.at_s > WARM_S:
                streams = (owner.streams + running) // 2
                ttft_s, after_s = owner.first_s - owner.at_s, now_s - owner.first_s
                sizes = each.prompt_tokens, each.generated, owner.queued_tokens, streams
                self.seen.append(Seen(*sizes, ttft_s, after_s / max(1, each.generated - 1)))


def record(load: float, seed: int) -> list[Seen]:
    """The requests of one engine at this share of its capacity."""
    mix, rng = MIXES[MIX], Random(f"{load} {seed}")
    world = _Recorded(Engine(replace(H100, noise=NOISE), rng))
    at_s = 0.0
    while at_s < LENGTH_S:
        at_s += rng.expovariate(load * mix.capacity_per_s / ENGINES)
        world.at(at_s, partial(world.come, *mix.draw(rng)))
    world.elapse()
    return world.seen
