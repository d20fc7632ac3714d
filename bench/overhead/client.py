"""The load client, one process for one load: `python -m penstock.bench.overhead.client LOAD`.

LOAD is a load as JSON (see `loads`); the report is printed as JSON. Of streams every read costs one
clock, one count, two times and the bytes kept; whether the bytes are right is looked at when all
have ended, outside the window. Plain requests have a fixed rate, so that every peer has the same
work: a tick of 1 ms sends what is due on connections that are free; when none is, it is sent later,
and the rate achieved falls short of the rate wanted. In a closed loop each connection sends its
next request when it has an answer. First bytes are timed idle: one request at a time, to each port
in turn over one kept-alive connection, direct and a peer, so that what disturbs the machine
disturbs both alike.
"""

import asyncio
import gc
import os
import re
import sys
from collections import Counter
from time import monotonic
from typing import Final, cast

import msgspec
import uvloop
from msgspec.structs import replace

from penstock.bench import meter
from penstock.bench.client import HOST, Answer, ClientConnection, Way
from penstock.bench.overhead import answers
from penstock.bench.overhead.loads import (
    FirstByteLoad,
    FirstByteReport,
    Load,
    LoadReport,
    RequestLoad,
    StreamLoad,
)
from penstock.bench.routing.outcome import quantile

_QUANTILES: Final = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
# After this the streams should have ended; what has not is broken.
LATE_S: Final = 5.0
TICK_S: Final = 0.001
_BODY: Final = answers.PLAIN_BODY
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)\r", re.IGNORECASE)
_WORDS: Final = b"A gated pipe. " * 8
WARM_TURNS: Final = 20
ANSWER_S: Final = 5.0
# Two events: the first comes at once, the second and the end a tick later.
_FIRST_BYTE: Final = answers.chat_request(events=2, interval_ms=1)


class Connection(asyncio.Protocol):
    """What all kinds have in common."""

    _transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def abort(self) -> None:
        self._transport.abort()


class Tally:
    """What all connections count together. Times are kept while `recording`."""

    def __init__(self) -> None:
        self.count = 0  # events, or answers
        self.recording = False
        self.gaps_s: list[float] = []
        self.late_s: list[float] = []
        self.faults: Counter[str] = Counter()
        self.free: list[PlainConnection] = []

    async def report(self, load: StreamLoad | RequestLoad) -> LoadReport:
        """What comes within the load's window. Nothing is broken yet."""
        pids = {**load.cpu_of, "client": os.getpid()}
        before, count = meter.read(pids), self.count
        self.recording = True
        await asyncio.sleep(load.window_s)
        self.recording = False
        used, count = meter.read(pids).since(before), self.count - count
        return LoadReport(count, used.window_s, used.cpu_ns, used.busy_share, {})


# Streams -----------------------------------------------------------------------------------


class StreamConnection(Connection):
    def __init__(self, load: StreamLoad, tally: Tally) -> None:
        self._tally = tally
        self._request = answers.chat_request(events=load.events, interval_ms=load.interval_ms)
        self._interval_s = load.interval_ms / 1000
        self._expected = load.events + 1  # and [DONE]
        self._seen = 0
        self._cut = False
        self._last_s = 0.0
        self._anchor_s = float("inf")  # when event 0 would have come, had none been late
        self.parts: list[bytes] = []
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport.write(self._request)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        now_s = monotonic()
        self.parts.append(data)
        count = data.count(b"\n\n")
        if self._cut and data.startswith(b"\n"):
            count += 1
        self._cut = data.endswith(b"\n")
        if count:
            self._time(now_s, count)
        if self._seen >= self._expected and self._at_end():
            self._transport.close()

    def _time(self, now_s: float, count: int) -> None:
        tally = self._tally
        tally.count += count
        if self._seen:  # the first event comes at once and not by the wheel
            anchor_s = now_s - (self._seen + count) * self._interval_s
            if anchor_s < self._anchor_s:
                self._anchor_s = anchor_s
            if tally.recording:
                tally.gaps_s += [now_s - self._last_s, *[0.0] * (count - 1)]
                tally.late_s += [anchor_s - self._anchor_s] * count
        self._seen += count
        self._last_s = now_s

    def _at_end(self) -> bool:
        return b"".join(self.parts[-2:]).endswith(b"\r\n" + answers.LAST_CHUNK)

    def fault(self, *, exact: bool) -> str:
        """What is wrong with all that came."""
        expected = answers.stream_body(self._expected - 1)
        return fault_of(b"".join(self.parts), expected, exact=exact)


def fault_of(received: bytes, expected: bytes, *, exact: bool = True) -> str:
    """What is wrong with an answer's bytes, or its words; empty when nothing is."""
    answer = Answer()
    answer.feed(received)
    if answer.fault:
        return answer.fault
    if "transfer-encoding" not in answer.headers:
        return "not chunked"
    content = bytes(answer.body)
    if exact:
        return "" if content == expected else "other bytes"
    return "" if answers.content_of(content) == answers.content_of(expected) else "other words"


async def run_streams(load: StreamLoad) -> LoadReport:
    """Open the streams, measure the window, wait for their ends and check them."""
    tally = Tally()
    began_s = monotonic()
    streams = await _open(load, tally, began_s)
    await asyncio.sleep(began_s + load.ramp_s + load.settle_s - monotonic())
    report = await tally.report(load)
    last_s = load.ramp_s + load.events / load.events_per_s + LATE_S
    await asyncio.wait([stream.ended for stream in streams], timeout=began_s + last_s - monotonic())
    for stream in streams:
        if not stream.ended.done():
            tally.faults["unfinished"] += 1
            stream.abort()
        elif fault := stream.fault(exact=load.exact):
            tally.faults[fault] += 1
    gaps_ms, late_ms = (
        {name: 1e3 * quantile(times_s, of) for name, of in _QUANTILES.items()}
        for times_s in (tally.gaps_s, tally.late_s)
    )
    return replace(report, broken=dict(tally.faults), gap_ms=gaps_ms, late_ms=late_ms)


async def _open(load: StreamLoad, tally: Tally, began_s: float) -> list[StreamConnection]:
    loop = asyncio.get_running_loop()
    streams: list[StreamConnection] = []
    for number in range(load.streams):
        ahead_s = began_s + number * load.ramp_s / load.streams - monotonic()
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
        try:
            _, stream = await loop.create_connection(
                lambda: StreamConnection(load, tally), HOST, load.port
            )
        except OSError:
            tally.faults["refused"] += 1
        else:
            streams.append(stream)
    return streams


# Plain requests ----------------------------------------------------------------------------


class PlainConnection(Connection):
    """One kept-alive connection, one request at a time."""

    def __init__(self, load: RequestLoad, tally: Tally) -> None:
        self._tally = tally
        self._exact = load.exact
        self._closed_loop = not load.requests_per_s
        self._request = answers.chat_request(prompt_bytes=load.prompt_bytes)
        self._received = b""
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
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
        self._tally.count += 1
        if self._closed_loop:
            self.send()
        else:
            self._tally.free.append(self)


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


async def run_requests(load: RequestLoad) -> LoadReport:
    """Keep the rate over the settling time and the window; count the answers in the window."""
    loop = asyncio.get_running_loop()
    tally = Tally()
    connections = [
        (await loop.create_connection(lambda: PlainConnection(load, tally), HOST, load.port))[1]
        for _ in range(load.connections)
    ]
    pace = Pace(load, tally)
    await asyncio.sleep(load.settle_s)
    report = await tally.report(load)
    pace.stop()
    report = replace(report, broken=dict(tally.faults))
    for connection in connections:
        connection.abort()
    return report


# First bytes -------------------------------------------------------------------------------


async def run_first_bytes(load: FirstByteLoad) -> FirstByteReport:
    """Ask each port `turns` times: milliseconds to the first byte of a stream."""
    connections = {name: await ClientConnection.dial(port) for name, port in load.ports.items()}
    ms: dict[str, list[float]] = {name: [] for name in connections}
    for turn in range(WARM_TURNS + load.turns):
        for name, connection in connections.items():
            began_s = monotonic()
            async with asyncio.timeout(ANSWER_S):
                answer = await connection.ask(_FIRST_BYTE)
            if not answer.ended:
                raise ConnectionResetError("the peer closed the connection")
            if turn >= WARM_TURNS:
                ms[name].append((answer.first_s - began_s) * 1000)
    for connection in connections.values():
        connection.leave(Way.CLOSE)
    return FirstByteReport(ms)


async def report_of(load: Load) -> LoadReport | FirstByteReport:
    if isinstance(load, StreamLoad):
        return await run_streams(load)
    if isinstance(load, FirstByteLoad):
        return await run_first_bytes(load)
    return await run_requests(load)


def main(text: str) -> int:
    load = msgspec.json.decode(text, type=Load)
    gc.disable()  # short-lived, and a pause would be measured as the peer's
    print(msgspec.json.encode(uvloop.run(report_of(load))).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
