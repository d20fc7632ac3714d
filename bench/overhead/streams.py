"""The streams' side of the client: opens them, times their events, checks every byte.

Per read: one clock, one count, two bins and the bytes kept. Whether the bytes
are right is looked at when all streams have ended, outside the window.
"""

import asyncio
import os
from collections import Counter
from time import monotonic
from typing import Final, cast

from penstock.bench import meter
from penstock.bench.overhead import answers
from penstock.bench.overhead.histogram import Histogram
from penstock.bench.overhead.loads import LoadReport, StreamLoad

_PERCENTS: Final = {"p50": 50.0, "p99": 99.0, "p999": 99.9}
# After this the streams should have ended; what has not is broken.
LATE_S: Final = 5.0


class Tally:
    """What all streams count together. Times are kept while `recording`."""

    def __init__(self) -> None:
        self.events = 0
        self.recording = False
        self.gaps = Histogram()
        self.lateness = Histogram()


class StreamConnection(asyncio.Protocol):
    """One stream on its own connection."""

    def __init__(self, load: StreamLoad, tally: Tally) -> None:
        self._tally = tally
        self._request = answers.chat_request(events=load.events, interval_ms=load.interval_ms)
        self._interval_s = load.interval_ms / 1000
        self._expected = load.events + 1  # and [DONE]
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._seen = 0
        self._cut = False
        self._last_s = 0.0
        self._anchor_s = float("inf")  # when event 0 would have come, had none been late
        self.parts: list[bytes] = []
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
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
        tally.events += count
        if self._seen:  # the first event comes at once and not by the wheel
            anchor_s = now_s - (self._seen + count) * self._interval_s
            if anchor_s < self._anchor_s:
                self._anchor_s = anchor_s
            if tally.recording:
                tally.gaps.observe(now_s - self._last_s)
                if count > 1:
                    tally.gaps.observe(0.0, count - 1)
                tally.lateness.observe(anchor_s - self._anchor_s, count)
        self._seen += count
        self._last_s = now_s

    def _at_end(self) -> bool:
        return b"".join(self.parts[-2:]).endswith(b"\r\n" + answers.LAST_CHUNK)

    def abort(self) -> None:
        self._transport.abort()


def fault_of(received: bytes, expected: bytes, *, exact: bool = True) -> str:
    """What is wrong with an answer's bytes, or its words; empty when nothing is."""
    head, found, body = received.partition(b"\r\n\r\n")
    if not found:
        return "no answer"
    if not head.startswith(b"HTTP/1.1 200 "):
        return "status " + head[9:12].decode("latin-1")
    if b"\r\ntransfer-encoding: chunked" not in head.lower():
        return "not chunked"
    content = answers.dechunked(body)
    if content is None:
        return "cut"
    if exact:
        return "" if content == expected else "other bytes"
    return "" if answers.content_of(content) == answers.content_of(expected) else "other words"


async def run(load: StreamLoad) -> LoadReport:
    """Open the streams, measure the window, wait for their ends and check them."""
    tally = Tally()
    pids = {**load.cpu_of, "client": os.getpid()}
    began_s = monotonic()
    streams, refused = await _open(load, tally, began_s)
    await asyncio.sleep(began_s + load.ramp_s + load.settle_s - monotonic())
    before, events_before = meter.read(pids), tally.events
    tally.recording = True
    await asyncio.sleep(load.window_s)
    tally.recording = False
    after, events_after = meter.read(pids), tally.events
    last_s = load.ramp_s + load.events / load.events_per_s + LATE_S
    await asyncio.wait([stream.ended for stream in streams], timeout=began_s + last_s - monotonic())
    used = after.since(before)
    return LoadReport(
        count=events_after - events_before,
        window_s=used.window_s,
        cpu_ns=used.cpu_ns,
        busy_share=used.busy_share,
        broken=_faults(streams, refused, load),
        gap_ms={name: tally.gaps.percentile_ms(of) for name, of in _PERCENTS.items()},
        late_ms={name: tally.lateness.percentile_ms(of) for name, of in _PERCENTS.items()},
    )


async def _open(
    load: StreamLoad, tally: Tally, began_s: float
) -> tuple[list[StreamConnection], int]:
    loop = asyncio.get_running_loop()
    streams: list[StreamConnection] = []
    refused = 0
    for number in range(load.streams):
        ahead_s = began_s + number * load.ramp_s / load.streams - monotonic()
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)
        try:
            _, stream = await loop.create_connection(
                lambda: StreamConnection(load, tally), "127.0.0.1", load.port
            )
        except OSError:
            refused += 1
        else:
            streams.append(stream)
    return streams, refused


def _faults(streams: list[StreamConnection], refused: int, load: StreamLoad) -> dict[str, int]:
    expected = answers.stream_body(load.events)
    faults = Counter({"refused": refused})
    for stream in streams:
        if not stream.ended.done():
            faults["unfinished"] += 1
            stream.abort()
        else:
            faults[fault_of(b"".join(stream.parts), expected, exact=load.exact)] += 1
    del faults[""]
    return {fault: count for fault, count in faults.items() if count}
