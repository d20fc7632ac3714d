"""TLS between a socket's transport and the protocol that uses it, on either leg.

A transport to the protocol behind it, a protocol to the transport before it, and
the loop's own TLS in neither place, which would change what the data plane
promises: its write buffer leaves out what is encrypted already (a slow reader
looks like one that has stalled), a connection counts only after its handshake,
one direction cannot be ended alone, and closing waits for the peer. Here every
byte is on the socket's transport as soon as it is encrypted, so flow control,
timeouts and closing are those of a plain connection.

An answer is whole only if its end was told by `close_notify`: to the protocol
behind, a bare FIN is a connection that was lost.

A step of a server's handshake may take a private key's operation, 1.6 ms with RSA of 2,048 bits. So
these go by turns: many that come together hold no stream up.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, cast

from proxy.deadline import Deadline
from proxy.rota import Rota
from proxy.tenants import party_of

logger = logging.getLogger(__name__)

# More than a record holds (16 KiB); OpenSSL gives one at a time.
READ_BYTES: Final = 65_536

_NOBODY: Final = asyncio.Protocol()


@dataclass(frozen=True, slots=True)
class Certificates:
    """Contexts of the data port (None: plain HTTP) and, by name, of pools with https backends."""

    listener: ssl.SSLContext | None
    pools: Mapping[str, ssl.SSLContext]


PLAIN: Final = Certificates(None, {})


class TlsConnection(asyncio.Protocol):
    """One TLS connection; `app` is the protocol that reads and writes what is inside."""

    __slots__ = (
        "_app",
        "_context",
        "_deadline",
        "_early",
        "_error",
        "_handshake_s",
        "_incoming",
        "_on_failure",
        "_open",
        "_outgoing",
        "_rota",
        "_server_name",
        "_shut",
        "_ssl",
        "_transport",
        "_waits",
        "opened",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        app: asyncio.Protocol,
        *,
        handshake_s: float,
        server_name: str | None = None,
        on_failure: Callable[[], None] = lambda: None,
        rota: Rota | None = None,
    ) -> None:
        """`server_name` is whom a client wants to reach; a server has none.

        A server's handshake goes by the turns of `rota`.

        `opened` is done when the handshake is, with the OSError that it failed with.
        """
        self._app = app
        self._context = context
        self._server_name = server_name
        self._handshake_s = handshake_s
        self._on_failure = on_failure
        self._rota = rota
        self._waits = False  # for its turn
        self._deadline = Deadline(loop, self._expired)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl: ssl.SSLObject = cast(ssl.SSLObject, None)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._early: list[bytes] = []  # written before the handshake was done
        self._error: OSError | None = None
        self._open = False
        self._shut = False  # close_notify was sent: nothing more is written
        self.opened: asyncio.Future[None] = loop.create_future()

    # What the loop calls ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ssl = self._context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=self._server_name is None,
            server_hostname=self._server_name,
        )
        self._deadline.set(monotonic() + self._handshake_s)
        self._app.connection_made(cast(asyncio.Transport, self))
        if not self._transport.is_closing():
            self._shake_hands()

    def data_received(self, data: bytes) -> None:
        if self._shut:
            self._app.data_received(data)  # as it is: what comes now is counted and dropped
            return
        self._incoming.write(data)
        if not self._open and self._rota is not None:
            self._wait(self._rota)
        elif self._open or self._shake_hands():
            self._decrypt()

    def eof_received(self) -> None:
        """A bare FIN: whatever was under way may be cut."""
        self._error = self._error or ConnectionResetError("no close_notify")
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.close()
        self._early.clear()
        error = exc or self._error
        if not self._open and not self.opened.done():
            self._on_failure()
            self.opened.set_exception(error if isinstance(error, OSError) else ConnectionError())
            self.opened.exception()  # a server's is nobody's to retrieve
        app, self._app = (
            self._app,
            _NOBODY,
        )  # they know each other: only the collector would free them
        app.connection_lost(error)

    def pause_writing(self) -> None:
        self._app.pause_writing()

    def resume_writing(self) -> None:
        self._app.resume_writing()

    # What the protocol behind calls, as of a transport ------------------------------------------

    def write(self, data: bytes) -> None:
        if not data or self._shut or self._transport.is_closing():
            return
        if not self._open:
            self._early.append(data)
            return
        try:
            written = self._ssl.write(data)
            if written < len(data):  # a record is full
                view = memoryview(data)
                while written < len(data):
                    written += self._ssl.write(view[written:])
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()

    def can_write_eof(self) -> bool:
        return self._open

    def write_eof(self) -> None:
        """End this direction; what still comes is passed on undeciphered."""
        self._notify()
        self._transport.write_eof()

    def close(self) -> None:
        if self._open and not self._transport.is_closing():
            self._notify()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high=high, low=low)

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return self._ssl if name == "ssl_object" else self._transport.get_extra_info(name, default)

    # Inside -----------------------------------------------------------------------------------

    def _wait(self, rota: Rota) -> None:
        """Have the next step of the handshake done in a turn; what comes meanwhile is kept."""
        if self._incoming.pending > READ_BYTES:
            self._transport.pause_reading()
        if not self._waits:
            self._waits = True
            peer = self._transport.get_extra_info("peername")
            rota.add(party_of(peer[0]) if peer else "", self._take_turn)

    def _take_turn(self) -> bool:
        self._waits = False
        if not self._transport.is_closing():
            if self._incoming.pending > READ_BYTES:
                self._transport.resume_reading()
            if self._shake_hands():
                self._decrypt()
        return False

    def _shake_hands(self) -> bool:
        """Go on with the handshake; True once it is done."""
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._fail(error)
            return False
        self._open = True
        self._deadline.clear()
        self._flush()
        if not self.opened.done():
            self.opened.set_result(None)
        early, self._early = self._early, []
        for data in early:
            self.write(data)
        return True

    def _decrypt(self) -> None:
        """Pass on all that is here, in one piece, and the end if it was told."""
        parts: list[bytes] = []
        ended = False
        failure: ssl.SSLError | None = None
        try:
            # Asking for what is not there costs an exception.
            while self._incoming.pending or self._ssl.pending():
                data = self._ssl.read(READ_BYTES)
                if not data:
                    ended = True
                    break
                parts.append(data)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError as error:
            failure = error
        self._flush()
        if parts:
            self._app.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if self._transport.is_closing():
            return
        if failure is not None:
            self._fail(failure)
        elif ended:
            self._app.eof_received()
            self.close()

    def _flush(self) -> None:
        if self._outgoing.pending and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())

    def _notify(self) -> None:
        """Send close_notify, once; the peer's own is not waited for."""
        if not self._shut:
            self._shut = True
            with contextlib.suppress(ssl.SSLError):  # the peer's is not here
                self._ssl.unwrap()
            self._flush()

    def _fail(self, error: ssl.SSLError) -> None:
        """The peer speaks no TLS that is acceptable: tell it by the alert, then close."""
        side = "client" if self._server_name is None else "backend"
        logger.debug("tls failed with=%s reason=%s", side, error.reason)
        self._error = error
        self._shut = True
        self._flush()
        self._transport.close()

    def _expired(self) -> None:
        self._error = TimeoutError("the handshake took too long")
        self._transport.abort()
