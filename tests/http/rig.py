"""The real classes of the data path without sockets: a client's bytes in, two wires' bytes out.

Only the transports and the dial are stand-ins; every request meets a backend connection of its
own, which echoes what is canonical and keeps every byte.
"""

import asyncio
import errno
import os
from random import Random
from typing import Any, Final, cast

from penstock.balancing.backend import State
from penstock.conf.settings import Settings
from penstock.proxy.data.configuration import configure, draft
from penstock.proxy.data.listener import ClientConnection
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.wire.host import Names
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

    def is_reading(self) -> bool:
        return True

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
    """A real loop on which every dial succeeds at once where a port is left."""

    def __init__(self) -> None:
        super().__init__()
        self.backends: list[_Backend] = []
        self.without_ports: set[str] = set()  # addresses

    async def sock_connect(self, sock: Any, address: Any) -> None:
        if address[0] in self.without_ports:
            raise OSError(errno.EADDRNOTAVAIL, "")

    async def create_connection(self, factory: Any, *where: Any, **how: Any) -> Any:  # type: ignore[override]
        how["sock"].close()
        protocol = factory()
        wire = _Backend(self, protocol)
        self.backends.append(wire)
        protocol.connection_made(wire)
        return wire, protocol


class Rig:
    """One data plane for all requests of a run."""

    def __init__(self, loop: Loop, backends: int = 1) -> None:
        """Their addresses are 10.0.0.1 and so on."""
        self._loop = loop
        names = [f"b{number}" for number in range(1, backends + 1)]
        urls = [f"http://10.0.0.{number}:1" for number in range(1, backends + 1)]
        settings = Settings.model_validate(
            {
                "pools": [
                    {
                        "name": "p",
                        "backends": [
                            {"name": name, "url": url}
                            for name, url in zip(names, urls, strict=True)
                        ],
                    }
                ],
                "paths": ["GET /raw", "POST /raw"],
                "log": {"access": False},
            }
        )
        reachable = Names(has_way=lambda _: True)
        configuration = configure(draft(settings, {}, None), loop, reachable)
        self.backends = configuration.fleet.backends
        for backend in self.backends:
            backend.state = State.READY
        self._plane = DataPlane(configuration, loop=loop, rng=Random(1), metrics=Metrics(["p"]))

    async def play(self, pieces: list[bytes]) -> tuple[bytes, bool, list[bytes]]:
        """What the client got, whether it was closed on it, what each backend connection got."""
        connection = ClientConnection(self._plane)
        wire = _Wire(self._loop, cast(asyncio.Protocol, connection))
        connection.connection_made(wire)
        self._loop.backends.clear()
        for connections in self._plane.connections.values():
            connections.distrust()  # so that none of before is used
        for piece in pieces:
            if not wire.is_closing():
                connection.data_received(piece)
            await self._turn()
        upstream = [backend.sent for backend in self._loop.backends]
        closed = wire.ended
        if not wire.is_closing():
            connection.eof_received()
            await self._turn()
        assert all(backend.own.idle for backend in self.backends), "a lease was not given back"
        assert not self._plane.clients
        return wire.sent, closed, upstream

    async def _turn(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
