"""Both ends of a TLS connection, and a wire between them that a test delivers by hand."""

import asyncio
import ssl
from typing import Any

from penstock.proxy.wire.handshakes import Handshakes
from penstock.proxy.wire.records import RecordReads
from penstock.proxy.wire.scheduler import Scheduler
from penstock.proxy.wire.tls import TlsConnection
from tests.certificates import client_context, server_context
from tests.unit.proxy.turns import Turns
from tests.unit.proxy.wire.transport import Transport

HANDSHAKE_S = 5.0


class Wire(Transport):
    """One end of a wire that a test delivers by hand."""

    def __init__(self, address: str = "192.0.2.1") -> None:
        super().__init__(address)
        self.ended = self.paused = False
        self.limits: tuple[int | None, int | None] = (None, None)

    def write(self, data: Any) -> None:
        assert not self.ended
        super().write(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def get_write_buffer_size(self) -> int:
        return len(self.sent)

    def is_reading(self) -> bool:
        return not self.paused

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high, low)


class App(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: Any = None
        self.got = b""
        self.pieces = 0
        self.ended = 0
        self.lost: list[Exception | None] = []
        self.paused = 0
        self.greeting = b""
        self.fails = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        if self.greeting:
            self.transport.write(self.greeting)

    def data_received(self, data: bytes) -> None:
        if self.fails:
            raise ValueError
        self.got += data
        self.pieces += 1

    def eof_received(self) -> None:
        self.ended += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.paused += 1


class End:
    """One end: the layer under test, the wire below it, the protocol behind it."""

    def __init__(
        self,
        context: ssl.SSLContext,
        server_name: str | None = None,
        rota: Scheduler | None = None,
        reads: RecordReads | None = None,
        proven: bool = True,
        handshakes: Handshakes | None = None,
    ) -> None:
        self.wire, self.app = Wire(), App()
        self.turned = reads is None and server_name is None  # `deliver` turns its loop
        if reads is None:
            turned: Any = rota.loop if rota is not None else Turns()
            reads = RecordReads(turned if self.turned else asyncio.get_running_loop())
        self.proven = proven
        self.holder = "tenant"
        self.refused = False
        self.failures = 0
        self.tls = TlsConnection(
            asyncio.get_running_loop(),
            context,
            self.app,
            handshake_s=HANDSHAKE_S,
            server_name=server_name,
            on_failure=self.failed,
            rota=rota,
            handshakes=handshakes,
            reads=reads,
            sender=None if server_name else self,
        )

    def give_way(self, *, asked: bool = False) -> None:
        assert asked
        self.refused = True
        self.app.transport.write(b"no room")
        self.app.transport.write_eof()

    def failed(self) -> None:
        self.failures += 1


def deliver(source: End, to: End, piece_bytes: int = 0) -> bytes:
    """What one end sent, to the other end, whole or in pieces."""
    sent, source.wire.sent = source.wire.sent, b""
    step = piece_bytes or max(1, len(sent))
    for at in range(0, len(sent), step):
        if not to.wire.is_closing():
            to.tls.data_received(sent[at : at + step])
            turns: Any = to.tls._reads.rota.loop
            if to.tls._rota is None and isinstance(turns, Turns):
                while (to.turned or not to.tls._open) and turns.turn():
                    pass
    return sent


def shaken(
    *, client: ssl.SSLContext | None = None, server: ssl.SSLContext | None = None,
    name: str = "localhost", piece_bytes: int = 0,
) -> tuple[End, End]:  # fmt: skip
    """A client and a server after their handshake."""
    left, right = End(client or client_context(), name), End(server or server_context())
    connect(left, right)
    return shake(left, right, piece_bytes)


def connect(client: End, server: End) -> None:
    """Only the client has something to say."""
    server.tls.connection_made(server.wire)
    client.tls.connection_made(client.wire)


def shake(client: End, server: End, piece_bytes: int = 0) -> tuple[End, End]:
    """Deliver what each of them says until both are silent."""
    while client.wire.sent or server.wire.sent:
        deliver(client, server, piece_bytes)
        deliver(server, client, piece_bytes)
    return client, server
