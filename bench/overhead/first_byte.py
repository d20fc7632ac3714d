"""Time to the first byte of a stream, idle: one request at a time, to each port in turn.

Each port has one kept-alive connection. A turn asks all ports once, direct and
a peer, so that what disturbs the machine disturbs both alike.
"""

import asyncio
from time import monotonic
from typing import Final, cast

from penstock.bench.overhead import answers
from penstock.bench.overhead.loads import FirstByteLoad, FirstByteReport

WARM_TURNS: Final = 20
ANSWER_S: Final = 5.0
# Two events: the first comes at once, the second and the end a tick later.
_REQUEST: Final = answers.chat_request(events=2, interval_ms=1)


class TimedConnection(asyncio.Protocol):
    """Notes when the answer's first byte came, and its end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._ended: asyncio.Future[None] | None = None
        self._tail = b""
        self._first_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(ConnectionResetError("the peer closed the connection"))

    def data_received(self, data: bytes) -> None:
        if not self._first_s:
            self._first_s = monotonic()
        self._tail = self._tail[-8:] + data
        if self._ended is not None and self._tail.endswith(b"\r\n" + answers.LAST_CHUNK):
            self._ended.set_result(None)

    async def ask(self) -> float:
        """One stream; milliseconds to its first byte."""
        self._first_s = 0.0
        self._tail = b""
        self._ended = self._loop.create_future()
        began_s = monotonic()
        self._transport.write(_REQUEST)
        async with asyncio.timeout(ANSWER_S):
            await self._ended
        return (self._first_s - began_s) * 1000

    def close(self) -> None:
        self._ended = None
        self._transport.abort()


async def run(load: FirstByteLoad) -> FirstByteReport:
    """Ask each port `turns` times."""
    loop = asyncio.get_running_loop()
    connections = {
        name: (await loop.create_connection(TimedConnection, "127.0.0.1", port))[1]
        for name, port in load.ports.items()
    }
    ms: dict[str, list[float]] = {name: [] for name in connections}
    for turn in range(WARM_TURNS + load.turns):
        for name, connection in connections.items():
            took_ms = await connection.ask()
            if turn >= WARM_TURNS:
                ms[name].append(took_ms)
    for connection in connections.values():
        connection.close()
    return FirstByteReport(ms)
