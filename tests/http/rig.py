"""The real classes of the data path without sockets: a client's bytes in, two wires' bytes out.

Only the transports and the dial are stand-ins; every request meets a backend connection of its
own, which echoes what is canonical and keeps every byte.
"""

import asyncio
import os
from random import Random
from typing import Any, Final, cast

from balancing.backend import State
from conf.settings import Settings
from proxy.configuration import configure, draft
from proxy.host import Names
from proxy.listener import ClientConnection
from proxy.metrics import Metrics
from proxy.plane import DataPlane
from tests.e2e.raw_backend import LENGTH, answer
from tests.http.case import echo

# Turns of the loop that a request's whole life takes: dial, send, answer, close.
_TURNS: Final = 12


class _Socket:
    """Nothing ever comes on it unseen."""

    def __init__(self) -> None:
        self._fd = os.pipe()[0]

    def setsockopt(self, *option: object) -> None:
        pass

    def fileno(self) -> int:
        return self._fd


_SOCKET: Final = _Socket()


class _Wire(asyncio.Transport):
    """One side's transport: keeps what is written and tells its protocol of its end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._closing = False
        self.sent = b""
        self.ended = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.7", 1) if name == "peername" else _SOCKET

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        assert not self.ended
        if not self._closing:
            self.sent += bytes(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        if not self._closing:
            self._closing = self.ended = True
            self._loop.call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class _Backend(_Wire):
    """Answers each whole request with an echo."""

    def write(self, data: Any) -> None:
        super().write(data)
        end = self.sent.find(b"\r\n\r\n")
        match = LENGTH.search(self.sent, 0, end + 2)
        if len(self.sent) == end + 4 + (int(match[1]) if match else 0):
            told = answer(echo(self.sent[end + 4 :]))
            self._loop.call_soon(self._protocol.data_received, told)


class Loop(asyncio.SelectorEventLoop):
    """A real loop on which every dial succeeds at once."""

    def __init__(self) -> None:
        super().__init__()
        self.backends: list[_Backend] = []

    async def create_connection(self, factory: Any, *where: Any, **how: Any) -> Any:  # type: ignore[override]
        protocol = factory()
        wire = _Backend(self, protocol)
        self.backends.append(wire)
        protocol.connection_made(wire)
        return wire, protocol


class Rig:
    """One data plane for all requests of a run."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        settings = Settings.model_validate(
            {
                "pools": [{"name": "p", "backends": [{"name": "b", "url": "http://10.0.0.1:1"}]}],
                "paths": ["GET /raw", "POST /raw"],
                "log": {"access": False},
            }
        )
        configuration = configure(draft(settings, {}, None), loop, Names())
        self._backend = configuration.fleet.backends[0]
        self._backend.state = State.READY
        self._plane = DataPlane(configuration, loop=loop, rng=Random(1), metrics=Metrics(["p"]))

    async def play(self, pieces: list[bytes]) -> tuple[bytes, bool, list[bytes]]:
        """What the client got, whether it was closed on it, what each backend connection got."""
        connection = ClientConnection(self._plane)
        wire = _Wire(self._loop, cast(asyncio.Protocol, connection))
        connection.connection_made(wire)
        self._loop.backends.clear()
        self._plane.connections["b"].distrust()  # so that none of before is used
        for piece in pieces:
            if not wire.is_closing():
                connection.data_received(piece)
            await self._turn()
        upstream = [backend.sent for backend in self._loop.backends]
        closed = wire.ended
        if not wire.is_closing():
            connection.eof_received()
            await self._turn()
        assert self._backend.own.idle, "a lease was not given back"
        assert not self._plane.clients
        return wire.sent, closed, upstream

    async def _turn(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
