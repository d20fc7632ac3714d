"""Workloads that are made up: what traces without prefixes or sessions cannot show.

Rates are nominal; an experiment plays them as fast as its load demands. Sizes follow what the
published traces of each kind look like, in round numbers:

- `skewed`: 8 % of the prompts are 67 times as long as the others; nothing is used again.
- `uniform`: nothing is ever used again, so only balance counts.
- `shared_prefix`: 64 groups with a long common beginning, some much more popular than others.
- `agentic`: conversations of some 40 turns whose prompts grow; 96 to 97 % of all turns use at
  least 90 % of their prompt again. They are of any age when the window begins.
"""

from collections.abc import Callable, Mapping
from itertools import count
from random import Random
from types import MappingProxyType
from typing import Final

from penstock.bench.routing.trace import BLOCK_TOKENS, Arrival, random_times

REQUESTS_PER_S: Final = 4.0
LONG_SHARE: Final = 0.08
GROUPS: Final = 64
# Zipf's exponent of the groups' popularity.
SKEW: Final = 1.0
TURNS_MEAN: Final = 40.0
# What an agent does between an answer and its next request, and how fast answers come meanwhile.
TOOL_S: Final = 5.0
# Where agents begin anew: below the context of 131,072 tokens that models have.
CONVERSATION_TOKENS_MAX: Final = 120_000
# Conversations begin this long before the window: two of their mean lives of some 520 s.
LEAD_S: Final = 1_040.0
DECODE_S: Final = 0.03


def skewed(length_s: float, rng: Random) -> list[Arrival]:
    """Poisson arrivals of unique prompts: 20,000 tokens, or far oftener 300."""
    return [
        Arrival(at_s, 20_000 if rng.random() < LONG_SHARE else 300, 64)
        for at_s in list(random_times(length_s, REQUESTS_PER_S, rng))
    ]


def uniform(length_s: float, rng: Random) -> list[Arrival]:
    """Poisson arrivals of unique prompts of 256 to 8,192 tokens."""
    return [
        Arrival(at_s, rng.randint(256, 8_192), rng.randint(50, 500))
        for at_s in list(random_times(length_s, REQUESTS_PER_S, rng))
    ]


def shared_prefix(length_s: float, rng: Random) -> list[Arrival]:
    """Poisson arrivals: the prefix of a group, 2,048 to 8,192 tokens, and an end of its own."""
    sizes = [rng.randint(4, 16) for _ in range(GROUPS)]  # in blocks
    weights = [1.0 / rank**SKEW for rank in range(1, GROUPS + 1)]
    arrivals = []
    for at_s in list(random_times(length_s, REQUESTS_PER_S, rng)):
        (group,) = rng.choices(range(GROUPS), weights)
        prefix = tuple(group * 1_000 + i for i in range(sizes[group]))
        tokens = sizes[group] * BLOCK_TOKENS + rng.randint(100, 1_000)
        arrivals.append(Arrival(at_s, tokens, rng.randint(50, 300), prefix, f"group-{group}"))
    return arrivals


def agentic(length_s: float, rng: Random) -> list[Arrival]:
    """Conversations: each turn's prompt is all before it, the answers too, and a tool's result."""
    blocks = count(1)
    arrivals = []
    begun = list(random_times(LEAD_S + length_s, REQUESTS_PER_S / TURNS_MEAN, rng))
    for number, start_s in enumerate(begun):
        at_s, tokens = start_s - LEAD_S, rng.randint(8_000, 16_000)
        prefix: list[int] = []
        while at_s < length_s:
            output = rng.randint(50, 500)
            whole = (tokens + output) // BLOCK_TOKENS
            prefix += [next(blocks) for _ in range(whole - len(prefix))]
            if at_s >= 0.0:
                arrivals.append(Arrival(at_s, tokens, output, tuple(prefix), f"agent-{number}"))
            if rng.random() < 1.0 / TURNS_MEAN or tokens > CONVERSATION_TOKENS_MAX:
                break
            at_s += output * DECODE_S + rng.expovariate(1.0 / TOOL_S)
            tokens += output + rng.randint(100, 700)
    arrivals.sort()
    return arrivals


GENERATORS: Final[Mapping[str, Callable[[float, Random], list[Arrival]]]] = MappingProxyType(
    {"skewed": skewed, "uniform": uniform, "shared_prefix": shared_prefix, "agentic": agentic}
)
