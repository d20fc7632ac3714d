"""Recorded workloads as arrivals: who asks for how many tokens, when, after which prefix.

Reads the public formats by the names of their columns: Azure's CSV (lengths and times) and
Mooncake's JSON lines (with prefix blocks of 512 tokens), plain or gzipped. Where the stamps of a
file all fall on a grid of seconds (Mooncake's `conversation`, 3 s), each arrival is spread over
the time to the next point, by the seed; replayed as they are they would make herds.
"""

import csv
import gzip
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from datetime import datetime
from math import gcd
from pathlib import Path
from random import Random
from typing import IO, Final, NamedTuple

import orjson

BLOCK_TOKENS: Final = 512
# Stamps that all are multiples of more than this were rounded.
GRID_MS_MIN: Final = 1_000
# A block that more than this share of all requests have is a system prompt, no conversation.
COMMON_SHARE: Final = 0.05


class Arrival(NamedTuple):
    """One request. `prefix` names its full blocks of BLOCK_TOKENS, each with all before it.

    `session` is the conversation that it belongs to, as far as its prefix tells.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    session: str | None = None
    tenant: str = ""


def block_hashes(arrival: Arrival, block_tokens: int) -> list[Hashable]:
    """Names for the engine's blocks below those of the trace; what follows them is its own."""
    per_block = BLOCK_TOKENS // block_tokens
    return [(name, part) for name in arrival.prefix for part in range(per_block)]


class UnknownFormat(ValueError):
    """The file is none of the formats that are read here; the text names it and them."""


def read(path: Path, rng: Random) -> list[Arrival]:
    """All arrivals of a file in order, from 0 s on. Raises UnknownFormat, OSError."""
    with opened(path) as lines:
        first = next(lines, "")
        if first.startswith("{"):
            arrivals = _mooncake([first, *lines], rng)
        elif first.startswith("TIMESTAMP,ContextTokens,GeneratedTokens"):
            arrivals = _azure(lines)
        else:
            raise UnknownFormat(
                f"{path}: neither Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens) "
                "nor Mooncake's or ServeGen's JSON lines"
            )
    arrivals.sort()
    return arrivals


def window(arrivals: Sequence[Arrival], length_s: float, rng: Random) -> list[Arrival]:
    """A piece of that length from a place of the seed's choice, from 0 s on; never empty."""
    spare_s = arrivals[-1].at_s - length_s
    start_s = rng.uniform(0.0, spare_s) if spare_s > 0 else 0.0
    if not any(start_s <= each.at_s < start_s + length_s for each in arrivals):
        start_s = rng.choice(arrivals).at_s  # it fell into a pause
    return [
        each._replace(at_s=each.at_s - start_s)
        for each in arrivals
        if start_s <= each.at_s < start_s + length_s
    ]


def opened(path: Path) -> IO[str]:
    """The lines of a file, gzipped or not."""
    return gzip.open(path, "rt") if path.suffix == ".gz" else path.open()


def _mooncake(lines: Sequence[str], rng: Random) -> list[Arrival]:
    rows = [orjson.loads(line) for line in lines]
    start_ms = min(row["timestamp"] for row in rows)
    grid_ms = gcd(*(row["timestamp"] - start_ms for row in rows))
    spread_s = grid_ms / 1e3 if grid_ms >= GRID_MS_MIN else 0.0
    prefixes = [tuple(row["hash_ids"][: row["input_length"] // BLOCK_TOKENS]) for row in rows]
    sessions = _sessions(prefixes)
    return [
        Arrival(
            (row["timestamp"] - start_ms) / 1e3 + rng.uniform(0.0, spread_s),
            row["input_length"],
            row["output_length"],
            prefix,
            session,
        )
        for row, prefix, session in zip(rows, prefixes, sessions, strict=True)
    ]


def _sessions(prefixes: Sequence[tuple[int, ...]]) -> list[str | None]:
    """The first block of each prefix that is not everybody's."""
    shared = Counter(block for prefix in prefixes for block in prefix)
    limit = COMMON_SHARE * len(prefixes)
    return [
        next((str(block) for block in prefix if shared[block] <= limit), None)
        for prefix in prefixes
    ]


def _azure(lines: Iterator[str]) -> list[Arrival]:
    rows = [
        (datetime.fromisoformat(stamp[:26]), int(prompt), int(output))
        for stamp, prompt, output in csv.reader(lines)
    ]
    if not rows:
        return []
    start = min(row[0] for row in rows)
    return [Arrival((at - start).total_seconds(), prompt, output) for at, prompt, output in rows]
