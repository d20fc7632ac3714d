"""The backend of the measurement: one process that costs next to nothing.

Not a vLLM server, only its bytes: the streams' events are made beforehand and
sent by one timer wheel. It answers /health, /v1/models and, to any POST, a
plain or a streamed chat answer. Prints its port. `python -m penstock.bench.overhead.backend`.
"""

import asyncio
import gc
import re
import signal
from time import monotonic
from typing import Final, Protocol, cast

import uvloop

from penstock.bench.overhead import answers

BACKLOG: Final = 4_096
TICK_S: Final = 0.001
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)")
_EVENTS: Final = re.compile(rb'"max_tokens" *: *(\d+)')
_INTERVAL: Final = re.compile(rb'"seed" *: *(\d+)')
_STREAM: Final = re.compile(rb'"stream" *: *true')
_USAGE: Final = re.compile(rb'"include_usage" *: *true')
_END: Final = {usage: answers.stream_end(usage=usage) for usage in (False, True)}


def _end_of(head: bytes, data: bytes, body: int) -> int:
    """Where a request ends whose body begins there; beyond the data while it is not whole.

    What is asked is read from the raw body, chunked or not: smg sends its bodies chunked.
    """
    if b"\r\ntransfer-encoding: chunked" in head:
        last = data.find(answers.LAST_CHUNK, body)
        return last + len(answers.LAST_CHUNK) if last >= 0 else len(data) + 1
    length = _LENGTH.search(head)
    return body + (int(length[1]) if length else 0)


class Turned(Protocol):
    """What is on the wheel. `turn` returns whether it stays."""

    def turn(self) -> bool: ...


class Wheel:
    """A timer wheel: many streams of few intervals on one timer of 1 ms.

    What is put on it is turned every so many milliseconds, at a phase that goes round, so that the
    sends of all streams are spread evenly over the interval. Time is absolute: a late tick is
    caught up with and no stream drifts. Idle, the wheel does not turn.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots: dict[int, list[list[Turned]]] = {}  # by interval, then by phase
        self._began_s = monotonic()
        self._tick = 0
        self._phase = 0
        self._turning = False

    def put(self, item: Turned, interval_ms: int) -> None:
        """Turn `item` every `interval_ms`, for the first time within one interval."""
        slots = self._slots.get(interval_ms)
        if slots is None:
            slots = self._slots[interval_ms] = [[] for _ in range(interval_ms)]
        self._phase += 1
        slots[self._phase % interval_ms].append(item)
        if not self._turning:
            self._turning = True
            self._tick = int((monotonic() - self._began_s) / TICK_S)
            self._loop.call_later(TICK_S, self._turn)

    def _turn(self) -> None:
        now = int((monotonic() - self._began_s) / TICK_S)
        while self._tick < now:
            self._tick += 1
            self.turn(self._tick)
        self._turning = any(any(slots) for slots in self._slots.values())
        if self._turning:
            self._loop.call_later(TICK_S, self._turn)

    def turn(self, tick: int) -> None:
        """Turn what is due at this tick, drop what does not stay."""
        for interval_ms, slots in self._slots.items():
            due = slots[tick % interval_ms]
            if due:
                slots[tick % interval_ms] = [item for item in due if item.turn()]


class BackendConnection(asyncio.Protocol):
    """One connection; while it streams it is on the wheel."""

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._buffer = b""
        self._remaining = 0
        self._end = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._remaining = 0

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:end].lower()
            whole = _end_of(head, data, end + 4)
            if len(data) < whole:
                break
            self._answer(head, data[end + 4 : whole])
            data = data[whole:]
        self._buffer = data

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"post "):
            if _STREAM.search(body):
                self._begin_stream(body)
            else:
                self._transport.write(answers.PLAIN)
        elif head.startswith(b"get /health "):
            self._transport.write(answers.HEALTHY)
        elif head.startswith(b"get /v1/models "):
            self._transport.write(answers.MODELS)
        else:
            self._transport.write(answers.NOT_FOUND)

    def _begin_stream(self, body: bytes) -> None:
        """Send the head and the first event at once, the others by the wheel."""
        events, interval = _EVENTS.search(body), _INTERVAL.search(body)
        self._remaining = int(events[1]) if events else 2
        self._end = _END[_USAGE.search(body) is not None]
        self._transport.write(answers.STREAM_HEAD)
        if self.turn():
            self._wheel.put(self, max(1, int(interval[1])) if interval else 20)

    def turn(self) -> bool:
        """Send the next event; False after the last, or when the other side has left."""
        remaining = self._remaining - 1
        self._remaining = remaining
        if remaining > 0:
            self._transport.write(answers.TOKEN_CHUNK)
            return True
        if remaining == 0:
            self._transport.write(self._end)
        return False


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    wheel = Wheel(loop)
    server = await loop.create_server(
        lambda: BackendConnection(wheel), "127.0.0.1", 0, backlog=BACKLOG
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    gc.freeze()
    gc.set_threshold(100_000)  # a pause here would be measured as the peer's
    await stopped.wait()
    server.close()


if __name__ == "__main__":
    uvloop.run(_serve())
