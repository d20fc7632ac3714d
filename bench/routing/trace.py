"""Recorded workloads as arrivals: who asks for how many tokens, when, after which prefix.

Reads the public formats by the names of their columns, plain or gzipped: Azure's CSV (lengths and
times), Mooncake's JSON lines (with prefix blocks of 512 tokens), and ServeGen's clients: rates and
lengths to sample from, not requests that were seen. Where the stamps of a file all fall on a grid
of seconds (Mooncake's `conversation`, 3 s), each arrival is spread over the time to the next point,
by the seed; replayed as they are they would make herds.

The load 1.0 of an experiment is a fluid bound on engine time: every prompt token is computed and
every output token decoded at the engine's best rate, as if batches were always full and nothing
were in any cache. That fills the engines exactly, so that steps that are not full make 1.0 more
than they can do, and prefix hits less.
"""

import csv
import gzip
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from datetime import datetime
from math import gcd
from pathlib import Path
from random import Random
from typing import IO, Any, Final, NamedTuple

import orjson

from penstock.bench.sim.profiles import STREAM_S, Gpu

BLOCK_TOKENS: Final = 512
# Stamps that all are multiples of more than this were rounded.
GRID_MS_MIN: Final = 1_000
# A block that more than this share of all requests have is a system prompt, no conversation.
COMMON_SHARE: Final = 0.05
# Of ServeGen's rows.
ROW_S: Final = 600.0
# Busy models have hundreds of requests a second: a window is cut shorter than asked beyond this.
REQUESTS_MAX: Final = 5_000


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


def sample(lines: Iterable[str], window_s: float, rng: Random) -> list[Arrival]:
    """Arrivals of a window that begins with a row of the seed's choice; shorter if that is many.

    A line of ServeGen's has a client: rows of 600 s with the rate, and the law of the gaps between
    its requests (Gamma or Weibull, shape and scale in seconds), and how often its prompts and
    answers have which length. Clients whose lengths were not published are left out. Each is a
    tenant. (Xiang and others, "ServeGen", arXiv 2505.09999; the columns as in its repository.)
    Raises UnknownFormat when no client's lengths are known, or all are silent.
    """
    clients = [client for line in lines if (client := orjson.loads(line))["dataset"] is not None]
    if not clients:
        raise UnknownFormat("no client of the file has its lengths")
    tables = [[_row(text) for text in client["trace_rows"]] for client in clients]
    index = rng.randrange(min(map(len, tables)))
    rate = sum(table[index][1] for table in tables)
    if not rate:
        raise UnknownFormat(f"no client sends anything in row {index}")
    length_s = min(window_s, ROW_S, REQUESTS_MAX / rate)
    arrivals = []
    for client, table in zip(clients, tables, strict=True):
        gap = _gaps(table[index], rng)
        if gap is None:
            continue
        prompts = _lengths(client["dataset"]["input_tokens"])
        outputs = _lengths(client["dataset"]["output_tokens"])
        at_s = gap() * rng.random()  # the row begins somewhere between two requests
        while at_s < length_s:
            (prompt,), (output,) = rng.choices(*prompts), rng.choices(*outputs)
            tenant = client["client"]
            arrivals.append(Arrival(at_s, max(1, prompt), max(1, output), tenant=tenant))
            at_s += gap()
    arrivals.sort()
    return arrivals


def _row(text: str) -> tuple[float, float, str, float, float]:
    """(start, rate, law, shape, scale) of `start,rate,variation,law,shape,scale`."""
    start, rate, _, law, shape, scale = text.strip().split(",")
    return float(start), float(rate), law, float(shape), float(scale)


def _gaps(row: tuple[float, float, str, float, float], rng: Random) -> Callable[[], float] | None:
    """A source of gaps in seconds; None for a client that was silent."""
    _, rate, law, shape, scale = row
    if not rate or not law:
        return None
    if law == "Gamma":
        return lambda: rng.gammavariate(shape, scale)
    return lambda: rng.weibullvariate(scale, shape)


def _lengths(table: str) -> tuple[Sequence[int], Sequence[float]]:
    """Lengths and their weights of `{length: probability, …}`."""
    weights: dict[Any, float] = literal_eval(table)
    return [int(length) for length in weights], list(weights.values())


def random_times(length_s: float, per_s: float, rng: Random) -> Iterator[float]:
    """When requests come that know nothing of each other. Each time is drawn when asked for."""
    at_s = rng.expovariate(per_s)
    while at_s < length_s:
        yield at_s
        at_s += rng.expovariate(per_s)


def fitting(arrivals: Sequence[Arrival], profile: Gpu) -> list[Arrival]:
    """Those that the model has the context for; vLLM refuses the others."""
    limit = profile.context_tokens
    return [each for each in arrivals if each.prompt_tokens + each.output_tokens <= limit]


def engine_s(arrival: Arrival, profile: Gpu) -> float:
    """Engine time of one request at the least, without its share of weights and overhead."""
    prompt, output = arrival.prompt_tokens, arrival.output_tokens
    prefill_s = prompt * profile.token_s + prompt * prompt / 2 * profile.attention_s
    held_tokens = prompt + output / 2
    return prefill_s + output * (profile.token_s + held_tokens * profile.kv_token_s + STREAM_S)


def speedup(arrivals: Sequence[Arrival], profile: Gpu, backends: float, load: float) -> float:
    """How much faster than recorded the trace is to be played for this load."""
    busy_s = sum(engine_s(each, profile) for each in arrivals)
    return load * backends * arrivals[-1].at_s / busy_s
