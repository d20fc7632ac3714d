"""What clients ask for, how answers show themselves, and how much four engines serve well.

`capacity_per_s`: the highest rate at which 99 % of all requests are good (96 % for `skewed`, which
never has 99), sent at once, with clients that wait for ever (bench/history/2026-11-admission.md).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Final

from penstock.bench.sim.profiles import GPUS, Gpu

ENGINES: Final = 4
PROFILE: Final = "8b-1xh100"
H100: Final = GPUS[PROFILE]


class Begins(Enum):
    """When a stream shows that it has begun, before any token: the event with the role."""

    NEVER = 0
    AT_ONCE = 1
    WITH_FIRST_TOKEN = 2  # as vLLM does


@dataclass(frozen=True, slots=True)
class Shown:
    """How an answer shows itself to whoever relays it.

    `stream`: token by token. Otherwise its end shows all of it. `generates`: not an embedding.
    `hidden_tokens`: from how many to how many come before the first that is shown.
    """

    stream: bool = True
    generates: bool = True
    hidden_tokens: tuple[int, int] = (0, 0)
    begins: Begins = Begins.WITH_FIRST_TOKEN


STREAM: Final = Shown()
PLAIN: Final = Shown(stream=False)
EMBEDDING: Final = Shown(stream=False, generates=False)


@dataclass(frozen=True, slots=True)
class Mix:
    """`draw`: tokens of a prompt and of its answer.

    `beginnings`: how many prompts share with others, `beginning_tokens` each, before what is drawn.
    """

    name: str
    profile: Gpu
    draw: Callable[[Random], tuple[int, int]]
    capacity_per_s: float
    beginnings: int = 0
    beginning_tokens: int = 0


def sizes(
    least: int, most: int, shortest: int, longest: int
) -> Callable[[Random], tuple[int, int]]:
    """Prompts and answers from one size to another."""
    return lambda rng: (rng.randint(least, most), rng.randint(shortest, longest))


def _skewed(rng: Random) -> tuple[int, int]:
    return (20_000 if rng.random() < 0.08 else 300), 64


MIXES: Final = {
    mix.name: mix
    for mix in (
        Mix("uniform", H100, sizes(256, 8_192, 50, 500), 21.0),
        Mix("skewed", H100, _skewed, 50.0),
        Mix("decode", replace(H100, max_num_seqs=64), sizes(50, 500, 200, 1_000), 44.0),
        Mix("kv", replace(H100, kv_tokens=100_000), sizes(200, 2_000, 300, 1_500), 18.0),
        Mix("agents", H100, sizes(100, 900, 50, 300), 45.0, 180, 6_144),
    )
}
