"""The plain requests' side of the client: a fixed rate, so that every peer has the same work.

A tick of 1 ms sends what is due on connections that are free; when none is, it
is sent later, and the rate achieved falls short of the rate wanted. In a closed loop
each connection sends its next request when it has an answer.
"""

import asyncio
import os
import re
from collections import Counter
from time import monotonic
from typing import Final, cast

from penstock.bench import meter
from penstock.bench.overhead import answers
from penstock.bench.overhead.loads import LoadReport, RequestLoad

TICK_S: Final = 0.001
_BODY: Final = answers.PLAIN_BODY
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r", re.IGNORECASE)
_WORDS: Final = b"A gated pipe. " * 8


class Tally:
    """What all connections count together."""

    def __init__(self) -> None:
        self.answered = 0
        self.faults: Counter[str] = Counter()
        self.free: list[PlainConnection] = []


class PlainConnection(asyncio.Protocol):
    """One kept-alive connection, one request at a time."""

    def __init__(self, load: RequestLoad, tally: Tally) -> None:
        self._tally = tally
        self._exact = load.exact
        self._closed_loop = not load.requests_per_s
        self._request = answers.chat_request(prompt_bytes=load.prompt_bytes)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._received = b""
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._tally.free.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self._tally.free:
            self._tally.free.remove(self)
        self._tally.faults["connection closed"] += 1

    def send(self) -> None:
        self._busy = True
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        length = _LENGTH.search(received)
        end = received.find(b"\r\n\r\n") + 4
        if end < 4 or length is None or len(received) < end + int(length[1]):
            self._received = received
            return
        self._received = b""
        if not self._busy or not received.startswith(b"HTTP/1.1 200"):
            self._tally.faults["status"] += 1
        elif received[end:] != _BODY if self._exact else _WORDS not in received:
            self._tally.faults["other bytes" if self._exact else "other words"] += 1
        self._busy = False
        self._tally.answered += 1
        if self._closed_loop:
            self.send()
        else:
            self._tally.free.append(self)

    def close(self) -> None:
        self._transport.abort()


class Pace:
    """Sends at the load's rate until stopped."""

    def __init__(self, load: RequestLoad, tally: Tally) -> None:
        self._loop = asyncio.get_running_loop()
        self._tally = tally
        self._per_s = load.requests_per_s
        self._began_s = monotonic()
        self._sent = 0
        self._stopped = False
        if self._per_s:
            self._tick()
        else:
            while tally.free:
                tally.free.pop().send()

    def stop(self) -> None:
        self._stopped = True

    def _tick(self) -> None:
        if self._stopped:
            return
        due = int((monotonic() - self._began_s) * self._per_s)
        free = self._tally.free
        while self._sent < due and free:
            free.pop(0).send()
            self._sent += 1
        self._loop.call_later(TICK_S, self._tick)


async def run(load: RequestLoad) -> LoadReport:
    """Keep the rate over the settling time and the window; count the answers in the window."""
    loop = asyncio.get_running_loop()
    tally = Tally()
    pids = {**load.cpu_of, "client": os.getpid()}
    connections = [
        (
            await loop.create_connection(
                lambda: PlainConnection(load, tally), "127.0.0.1", load.port
            )
        )[1]
        for _ in range(load.connections)
    ]
    pace = Pace(load, tally)
    await asyncio.sleep(load.settle_s)
    before, answered_before = meter.read(pids), tally.answered
    await asyncio.sleep(load.window_s)
    after, answered_after = meter.read(pids), tally.answered
    pace.stop()
    used = after.since(before)
    report = LoadReport(
        count=answered_after - answered_before,
        window_s=used.window_s,
        cpu_ns=used.cpu_ns,
        busy_share=used.busy_share,
        broken=dict(tally.faults),
    )
    for connection in connections:
        connection.close()
    return report
