"""What requests look like at an engine of a given load, recorded once from the simulated engine.

A run of a canary has ten thousand requests and more, and a table has thousands of runs. So runs
draw from these records, with the queue and the streams that each request found.
"""

import heapq
from dataclasses import replace
from random import Random
from typing import Final, NamedTuple

from penstock.bench.overload.mixes import H100, MIXES
from penstock.bench.sim.engine import Engine, Sequence

MIX: Final = "uniform"
ENGINES: Final = 4  # of the mix's capacity
NOISE: Final = 0.1
LOADS: Final = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
LENGTH_S: Final = 900.0
WARM_S: Final = 30.0


class Seen(NamedTuple):
    """One request."""

    prompt_tokens: int
    answer_tokens: int
    queued_tokens: int
    streams: int
    ttft_s: float
    itl_s: float


class _Owner:
    __slots__ = ("at_s", "first_s", "queued_tokens", "streams")

    def __init__(self, at_s: float, queued_tokens: int) -> None:
        self.at_s = at_s
        self.queued_tokens = queued_tokens
        self.streams = 0
        self.first_s = 0.0

    def token(self) -> None:
        """An engine's sequence has an owner with this."""


def record(load: float, seed: int) -> list[Seen]:
    """The requests of one engine at this share of its capacity."""
    mix, rng = MIXES[MIX], Random(f"{load} {seed}")
    engine = Engine(replace(H100, noise=NOISE), rng)
    arrivals = []
    at_s = 0.0
    while at_s < LENGTH_S:
        at_s += rng.expovariate(load * mix.capacity_per_s / ENGINES)
        arrivals.append((at_s, *mix.draw(rng)))
    heapq.heapify(arrivals)
    seen: list[Seen] = []
    now_s = 0.0
    while arrivals or not engine.idle:
        while arrivals and (arrivals[0][0] <= now_s or engine.idle):
            came_s, prompt, answer = heapq.heappop(arrivals)
            now_s = max(now_s, came_s)
            waiting = [each for each in engine.sequences if not each.generated]
            queued = sum([each.prompt_tokens - each.computed for each in waiting])
            engine.submit(Sequence(prompt, answer, _Owner(came_s, queued)), now_s)
        duration_s, emissions = engine.step(now_s)
        now_s += duration_s
        for each in emissions:
            owner = each.owner
            assert isinstance(owner, _Owner)
            if not owner.first_s:
                owner.first_s, owner.streams = now_s, engine.running
            if each.done and owner.at_s > WARM_S:
                owner.streams = (owner.streams + engine.running) // 2
                seen.append(_seen(each, owner, now_s))
    return seen


def _seen(sequence: Sequence, owner: _Owner, now_s: float) -> Seen:
    return Seen(
        sequence.prompt_tokens,
        sequence.generated,
        owner.queued_tokens,
        owner.streams,
        owner.first_s - owner.at_s,
        (now_s - owner.first_s) / max(1, sequence.generated - 1),
    )
