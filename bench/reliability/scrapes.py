"""`penstock bench scrapes`: what scrapes of /metrics add to the gaps between a stream's events.

It is seen from outside: a stream has an event every 5 ms, through a proxy before many backends that
has served some requests. Seconds with a scrape and seconds without one take turns. Of each second
the longest gap counts. A text that is kept from the last scrape costs less than one that is
rendered anew, so these stand apart. Exit 0 when the median of the longest gaps, with a rendered
text, is at most 5 ms above that without a scrape.
"""

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from statistics import median
from time import monotonic
from typing import Final

import uvloop

from penstock.bench.arguments import count, option
from penstock.bench.client import HOST, METRICS, Clients
from penstock.bench.processes import server
from penstock.bench.reliability import backend
from penstock.bench.reliability.proxy_process import QUIET, ProxyProcess
from penstock.bench.report import BenchError, head, row, verdict

BACKENDS: Final = 1_000
REQUESTS: Final = 500
SECOND_S: Final = 1.0
ADDED_MS_MAX: Final = 5.0
NONE: Final = "no scrape"
KEPT: Final = "a scrape, text kept"
RENDERED: Final = "a scrape, text rendered"
# Each takes a backend of its own, so that the histograms of as many are told.
POOL: Final = {"policy": "round_robin"}


class Gaps(asyncio.Protocol):
    """The stream: the longest time between two reads."""

    def __init__(self) -> None:
        self.ended = False
        self.longest_s = 0.0
        self._last_s = monotonic()

    def data_received(self, data: bytes) -> None:
        now_s = monotonic()
        self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True


async def _second(gaps: Gaps, proxy: ProxyProcess | None) -> tuple[float, bytes]:
    """The longest gap of one second in ms, and what a scrape at its begin was told."""
    gaps.longest_s = 0.0
    over = asyncio.create_task(asyncio.sleep(SECOND_S))
    told = await proxy.ask(METRICS) if proxy is not None else b""
    await over
    if gaps.ended or not gaps.longest_s:
        raise BenchError("the stream beside ended")
    return gaps.longest_s * 1e3, told


async def measure(
    scrapes: int, backends: int = BACKENDS, requests: int = REQUESTS
) -> Mapping[str, Sequence[float]]:
    """The longest gaps of each kind of second in ms, until so many texts were rendered."""
    longest_ms: dict[str, list[float]] = {NONE: [], KEPT: [], RENDERED: []}
    with server(backend.__name__) as url:
        listed = [{"name": f"b{number}", "url": url} for number in range(backends)]
        pools = [{"name": "default", "backends": listed, **POOL}]
        async with ProxyProcess([url] * backends, pools=pools, health=QUIET) as proxy:
            clients = Clients(proxy.port)
            for _ in range(requests):
                await clients.ask(backend.PLAIN)
            clients.close()
            loop = asyncio.get_running_loop()
            transport, gaps = await loop.create_connection(Gaps, HOST, proxy.port)
            transport.write(backend.PACED_SLOWLY)
            last = await proxy.ask(METRICS)
            while len(longest_ms[RENDERED]) < scrapes:
                longest_ms[NONE].append((await _second(gaps, None))[0])
                gap_ms, told = await _second(gaps, proxy)
                # Its own counters change all the time, so a new text differs.
                longest_ms[KEPT if told == last else RENDERED].append(gap_ms)
                last = told
            transport.abort()
    return longest_ms


def report(longest_ms: Mapping[str, Sequence[float]]) -> list[str]:
    """Print the table; what is outside its bound."""
    print(head("seconds with", "seconds", "longest gap, median, ms", "largest, ms", "added, ms"))
    usual_ms = median(longest_ms[NONE])
    for kind, gaps_ms in longest_ms.items():
        if gaps_ms:
            figures = median(gaps_ms), max(gaps_ms), median(gaps_ms) - usual_ms
            print(row(kind, len(gaps_ms), *(f"{figure:.1f}" for figure in figures)))
    added_ms = median(longest_ms[RENDERED]) - usual_ms
    if added_ms > ADDED_MS_MAX:
        return [f"a scrape adds {added_ms:.1f} ms, more than {ADDED_MS_MAX:g} ms"]
    return []


def arguments(parser: ArgumentParser) -> None:
    option(parser, "--scrapes N", count, 30, "rendered texts")
    option(parser, "--backends N", count, BACKENDS, "before which the proxy stands")


def run(options: Namespace) -> int:
    return verdict(report(uvloop.run(measure(options.scrapes, options.backends))))
