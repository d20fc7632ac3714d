"""`penstock bench scrape`: what a /metrics scrape does to the streams beside it.

200 streams of 50 events/s over 64 simulated servers through one real proxy.
Windows of 1.2 s alternate, without a scrape and with one in their middle; of
each the longest gap between two events of any stream is kept. The machine's
own noise is in both kinds of window, so their difference is the scrape's.
"""

import argparse
import asyncio
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Final, cast

import aiohttp
import uvloop

from bench.arguments import count
from bench.peers.fleet import Fleet
from bench.peers.ours import start_penstock
from bench.peers.peer import url
from bench.processes import stop
from bench.routing.outcome import quantile

BACKENDS: Final = 64
STREAMS: Final = 200
WINDOW_S: Final = 1.2
# By then every backend is probed.
PROBED_S: Final = 2.0
EVENTS: Final = 100_000  # half an hour: more than any run lasts
_BODY: Final = (
    b'{"model":"sim-model","stream":true,"max_tokens":%d,'
    b'"messages":[{"role":"user","content":"hi"}]}' % EVENTS
)
_REQUEST: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


class Gaps:
    """The longest gap of the current window, over all streams."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.events = 0


class Stream(asyncio.Protocol):
    """One stream that only looks at the clock when events come."""

    def __init__(self, gaps: Gaps) -> None:
        self._gaps = gaps
        self._last_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.WriteTransport, transport).write(_REQUEST)

    def data_received(self, data: bytes) -> None:
        now_s = monotonic()
        if self._last_s:
            self._gaps.longest_s = max(self._gaps.longest_s, now_s - self._last_s)
        self._last_s = now_s
        self._gaps.events += data.count(b"\n\n")


async def _windows(port: int, admin_port: int, rounds: int) -> tuple[list[float], list[float]]:
    """Longest gaps in ms: (of quiet windows, of windows with a scrape)."""
    loop = asyncio.get_running_loop()
    gaps = Gaps()
    transports = []
    for _ in range(STREAMS):
        transport, _ = await loop.create_connection(lambda: Stream(gaps), "127.0.0.1", port)
        transports.append(transport)
        await asyncio.sleep(0.005)
    await asyncio.sleep(1.0)
    quiet_ms: list[float] = []
    scraped_ms: list[float] = []
    async with aiohttp.ClientSession() as session:
        for number in range(2 * rounds):
            scrape = number % 2 == 1
            gaps.longest_s, gaps.events = 0.0, 0
            await asyncio.sleep(WINDOW_S / 2)
            if scrape:
                async with session.get(f"{url(admin_port)}/metrics") as answer:
                    assert answer.status == 200
                    assert len(await answer.read()) > 10_000
            await asyncio.sleep(WINDOW_S / 2)
            assert gaps.events > STREAMS, "the streams do not flow"
            (scraped_ms if scrape else quiet_ms).append(gaps.longest_s * 1000)
    for transport in transports:
        transport.abort()
    return quiet_ms, scraped_ms


def run(rounds: int) -> int:
    """Measure and print the table. Returns an exit status."""

    async def measure(port: int, admin_port: int) -> tuple[list[float], list[float]]:
        await asyncio.sleep(PROBED_S)
        return await _windows(port, admin_port, rounds)

    with Fleet(BACKENDS, "steady-50", 1.0) as fleet:
        penstock = start_penstock(fleet.ports, Path(), "token_cost")
        assert penstock.metrics_port is not None
        try:
            quiet_ms, scraped_ms = uvloop.run(measure(penstock.port, penstock.metrics_port))
        finally:
            stop(penstock.process)
    print(f"{STREAMS} streams x 50 events/s, {BACKENDS} backends, {rounds} windows of each kind\n")
    print("| longest gap of a window, ms | median | p90 | max |")
    print("|---|---|---|---|")
    for name, values in (("without a scrape", quiet_ms), ("with a scrape", scraped_ms)):
        p50_ms, p90_ms = quantile(values, 0.5), quantile(values, 0.9)
        print(f"| {name} | {p50_ms:.1f} | {p90_ms:.1f} | {max(values):.1f} |")
    added_ms = statistics.median(scraped_ms) - statistics.median(quiet_ms)
    print(f"\nadded by a scrape (difference of the medians): {added_ms:.1f} ms")
    return 0


def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="penstock bench scrape", description="What a scrape does to the streams beside it."
    )
    parser.add_argument(
        "--rounds", type=count, default=20, help="windows of each kind (default 20)"
    )
    options = parser.parse_args(argv)
    print(f"$ {shlex.join(['penstock', 'bench', 'scrape', *argv])}\n")
    return run(options.rounds)
