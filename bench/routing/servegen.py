"""ServeGen's clients as arrivals: rates and lengths to sample from, not requests that were seen.

A file has a JSON object a line for each client: rows of 600 s with the rate, and the law of the
gaps between its requests (Gamma or Weibull, shape and scale in seconds), and how often its prompts
and answers have which length. Clients whose lengths were not published are left out. Each is a
tenant. (Xiang and others, "ServeGen", arXiv 2505.09999; the columns as in its repository.)
"""

from ast import literal_eval
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, Final

import orjson

from penstock.bench.routing.trace import Arrival, UnknownFormat

ROW_S: Final = 600.0
# Busy models have hundreds of requests a second: a window is cut shorter than asked beyond this.
REQUESTS_MAX: Final = 5_000


def sample(lines: Iterable[str], window_s: float, rng: Random) -> list[Arrival]:
    """Arrivals of a window that begins with a row of the seed's choice; shorter if that is many.

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
