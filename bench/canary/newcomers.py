"""One new backend beside its peers, until it is known, with clients of whom one may be hostile.

The hostile client looks for sessions that the pool keeps at the new backend: half of what it sends
gets there.
"""

from random import Random
from typing import Final

from penstock.balancing.canary.ended import Ended, Ending
from penstock.balancing.canary.newcomer import Newcomer, Outcome
from penstock.bench.canary.world import (
    BROKEN,
    CLIENTS,
    ERRORS,
    HOSTILE,
    HOSTILE_SHARE,
    LOOK_S,
    RATE_PER_S,
    Case,
)

# Of eight backends one is new.
SHARE: Final = 1 / 8
# Of the new backend, or how a hostile client's requests end on it, or not.
CASES: Final = (
    Case("30 % errors", errors=0.3),
    Case("5 % errors", errors=0.05),
    Case("2 % errors", errors=0.02),
    Case("2 % of the answers cut", broken=0.02),
    Case("equal"),
    Case(
        "equal, a hostile client's requests fail there",
        hostile={True: Ending.ERROR, False: Ending.SERVED},
    ),
    Case(
        "5 % errors, a hostile client's requests fail on its peers",
        errors=0.05,
        hostile={True: Ending.SERVED, False: Ending.ERROR},
    ),
)


def play(case: Case, seed: int) -> tuple[Outcome, int, float]:
    """What became of it, after how many requests of its own and how many seconds."""
    rng, newcomer = Random(f"{case.name} {seed}"), Newcomer()
    now_s = looked_s = 0.0
    while True:
        now_s += rng.expovariate(RATE_PER_S)
        newcomer.add(_request(case, rng), now_s)
        if now_s - looked_s >= LOOK_S:
            looked_s = now_s
            found = newcomer.look(now_s)
            if found is not None:
                return found.outcome, newcomer.requests, now_s


def _request(case: Case, rng: Random) -> Ended:
    if case.hostile is not None and rng.random() < HOSTILE_SHARE:
        new = rng.random() < 0.5
        return Ended(case.hostile[new], canary=new, client=HOSTILE, fresh=False)
    new, draw, ending = rng.random() < SHARE, rng.random(), Ending.SERVED
    errors, broken = (case.errors, case.broken) if new else (ERRORS, BROKEN)
    if draw < errors:
        ending = Ending.ERROR
    elif draw < errors + broken:
        ending = Ending.BROKEN
    client = f"client {int(CLIENTS * rng.random() ** 2)}"
    return Ended(ending, canary=new, client=client, fresh=False)
