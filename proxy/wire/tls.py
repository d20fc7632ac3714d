"""TLS between a socket's transport and the protocol that uses it, on either leg.

It is a transport for the protocol behind it and a protocol for the transport before it. asyncio's
own TLS is not used: `bench/history/2026-12-fewer-ideas.md` has the figures. Every byte is on the
socket's transport as soon as it is encrypted. So flow control, limits and closing are those of a
plain connection, and one direction can be closed alone.

An answer is whole only if `close_notify` has told its end. For the protocol behind, a bare FIN is a
lost connection.

OpenSSL gets whole records only, a limited number in each turn (`records.py`). The rest waits here,
is counted, and no more is read meanwhile. One that does not take our replies to its key updates is
not read either.

A step of a server's handshake may take 1.6 ms (a private key of RSA with 2,048 bits). So these
steps have turns of their own, apart from those for bodies. A step that reads certificates may take
200 ms. So a thread does all steps with a backend, and with a client that is asked for a certificate
(`handshakes.py`). Meanwhile the loop does not touch `_ssl`.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Final, cast

from penstock.proxy.wire.certificates import ClientCertificate, names_shown
from penstock.proxy.wire.client_address import party_of
from penstock.proxy.wire.deadline import Deadline
from penstock.proxy.wire.handshakes import ClientHandshakes, Handshakes
from penstock.proxy.wire.ledger import STRANGERS, Sender
from penstock.proxy.wire.records import BARREN_COST, RecordReads, Records
from penstock.proxy.wire.scheduler import Scheduler
from penstock.proxy.wire.sockets import WRITE_BYTES

logger = logging.getLogger(__name__)

# More than a record holds (16 KiB). OpenSSL returns one record at a time.
READ_BYTES: Final = 65_536
# What a peer may send in a handshake. OpenSSL reads it all, before it knows who sent it. A client's
# hello of 65 KB, with keys of very many groups, took 155 ms; one of 8 KB takes 1.4 ms. One for
# post-quantum keys has 1.8 KB and may come twice.
HELLO_BYTES_MAX: Final = 8_192
# A client that is asked for a certificate: 2 to 5 KB are usual. OpenSSL keeps what it shows.
SHOWN_BYTES_MAX: Final = 16_384
# The server's part: 190 certificates of 128 bytes took 200 ms of a thread.
CHAIN_BYTES_MAX: Final = 24_576
# Until a handshake with certificates ends, what came after its hello counts so many times among the
# waiting bytes of strangers. OpenSSL takes 15 to 30 times as much to hold certificates, and
# everybody can show those of others and stop there.
HELLO_BYTES: Final = 2_048
SHOWN_TIMES: Final = 8

_NOBODY: Final = asyncio.Protocol()


class TlsConnection(asyncio.Protocol):
    """One TLS connection. `app` is the protocol that reads and writes the plain text."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext,
        app: asyncio.Protocol,
        *,
        handshake_s: float,
        reads: RecordReads,
        server_name: str | None = None,
        on_failure: Callable[[], None] = lambda: None,
        rota: Scheduler | None = None,
        handshakes: Handshakes | None = None,
        parties: ClientHandshakes | None = None,
        certificate: ClientCertificate | None = None,
        sender: Sender | None = None,
    ) -> None:
        """`server_name`: the server that a client wants to reach. None on the server's side.

        A server's handshakes take the turns of `rota`, a client's a thread of `handshakes`, and a
        server's that asks for a certificate a thread of `parties`; `certificate` gets what it was
        shown. `reads` is shared by the connections that may not block the loop together. `sender`
        is the client, on the server's side: it is refused if too many of its bytes wait. `opened`
        is done after the handshake, or holds the OSError of its failure.
        """
        self._app = app
        self._context = context
        self._server_name = server_name
        self._handshake_s = handshake_s
        self._on_failure = on_failure
        self._rota = rota
        self._handshakes = handshakes
        self._parties = parties
        self._certificate = certificate
        self._sender = sender
        self._reads = reads
        self._records = Records(single=server_name is None)
        self._deadline = Deadline(loop, self._expired)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl: ssl.SSLObject = cast(ssl.SSLObject, None)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._party = ""  # the party of the peer's address
        self._early: list[bytes] = []  # written before the end of the handshake
        self._error: OSError | None = None
        self._handshake_bytes = 0  # what the peer has sent in it so far
        self._limit_bytes = CHAIN_BYTES_MAX
        if server_name is None:
            self._limit_bytes = HELLO_BYTES_MAX if parties is None else SHOWN_BYTES_MAX
        self._open = False  # the handshake is done
        self._shut = False  # close_notify was sent: no more writes
        self._aborted = False
        self._unsent = False  # the transport's write buffer is above its limit
        # Reading is stopped because bytes wait here. They wait for their turn (`_queued`), until
        # the protocol behind reads again (`_held`), until our replies to key updates are sent
        # (`_choked`), or for a thread: while it does a step only that may use `_ssl` (`_shaking`).
        self._stopped = self._queued = self._held = self._choked = self._shaking = False
        self.opened: asyncio.Future[None] = loop.create_future()

    # What the loop calls ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.come_from(peer[0] if peer else "")
        name = self._server_name
        self._ssl = self._context.wrap_bio(
            self._incoming, self._outgoing, server_side=name is None, server_hostname=name
        )
        self._deadline.set(monotonic() + self._handshake_s)
        self._app.connection_made(cast(asyncio.Transport, self))
        if not self.is_closing():
            self._shake_hands()

    def data_received(self, data: bytes) -> None:
        if self._shut:
            self._app.data_received(data)  # undeciphered: it is only counted and dropped
            return
        records = self._records
        one = self._open and not self._choked and records.is_one(data)
        if one and self._reads.take(1):
            self._incoming.write(data)
            self._decrypt(1)
            return
        waited = records.left
        records.add(data)
        if not records.left:
            self._count()
        elif (
            waited
            or self._must_wait
            or (not self._open and self._rota is not None)
            or not records.fits
            or not self._reads.take(records.count)
        ):
            self._wait()
        else:
            self._decipher()
            self._count()

    def eof_received(self) -> None:
        """A bare FIN: the present answer may be cut."""
        self._error = self._error or ConnectionResetError("no close_notify")
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.close()
        self._early.clear()
        self._records.rest()
        self._reads.waiting.done(self)
        self._sender = None
        error = self._error or exc
        if not self._open and not self.opened.done():
            self._on_failure()
            self.opened.set_exception(error if isinstance(error, OSError) else ConnectionError())
            self.opened.exception()  # nobody retrieves a server's
        # Break the reference cycle: only the collector would free it.
        app, self._app = self._app, _NOBODY
        app.connection_lost(error)

    def pause_writing(self) -> None:
        self._unsent = True
        self._app.pause_writing()

    def resume_writing(self) -> None:
        self._unsent = self._choked = False
        self._app.resume_writing()
        self._go_on()

    def come_from(self, address: str) -> None:
        """Whose connection it is. A load balancer may tell another before the handshake begins."""
        self._party = party_of(address)
        if self._parties is not None:
            self._handshakes = self._parties.of(self._party)

    # What the protocol behind sees --------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if not data or self._shut or self.is_closing():
            return
        if not self._open:
            self._early.append(data)
            return
        try:
            written = self._ssl.write(data)
            while written < len(data):  # a record is full
                written += self._ssl.write(memoryview(data)[written:])
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()

    def writelines(self, pieces: Iterable[bytes | memoryview]) -> None:
        self.write(b"".join(pieces))

    def can_write_eof(self) -> bool:
        return self._open

    def write_eof(self) -> None:
        """End our direction. Bytes that still come are passed on undeciphered."""
        self._notify()
        self._transport.write_eof()

    def close(self) -> None:
        if self._open and not self.is_closing():
            self._notify()
        self._transport.close()

    def abort(self) -> None:
        """Close it at once. After a cancelled dial, uvloop's transport still looks open."""
        self._aborted = True
        self._reads.waiting.done(self)
        if self._transport is not None:
            self._transport.abort()

    def is_closing(self) -> bool:
        return self._aborted or self._transport.is_closing()

    def pause_reading(self) -> None:
        self._held = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._held = False
        if self._stopped:
            self._go_on()
        else:
            self._transport.resume_reading()

    def is_reading(self) -> bool:
        """Whether everything that the loop has read was passed on, and it reads on."""
        return self._transport.is_reading()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high=high, low=low)

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return self._ssl if name == "ssl_object" else self._transport.get_extra_info(name, default)

    # Bytes that wait ----------------------------------------------------------------------------

    @property
    def _must_wait(self) -> bool:
        return self._held or self._choked or self._shaking

    def _wait(self) -> None:
        """Have what is here deciphered in turns, once nothing else is waited for."""
        if not self._stopped:
            self._stopped = True
            self._transport.pause_reading()
        self._count()
        if not (self._queued or self._must_wait or self.is_closing()):
            self._queued = True
            rota = self._rota if self._rota is not None and not self._open else self._reads.rota
            rota.add(self._party, self._take_turn)

    def _go_on(self) -> None:
        """A reason to stop is gone: take waiting bytes in turns, or read on if there are none."""
        if not self._stopped or self._must_wait or self.is_closing():
            return
        if self._records.left:
            self._wait()
        else:
            self._stopped = False
            self._count()
            self._transport.resume_reading()

    def _take_turn(self) -> bool:
        """Decipher a slice. Returns whether more follow in the same turns."""
        shakes = not self._open
        if not (self._must_wait or self.is_closing()):
            try:
                self._decipher()
            except Exception:  # treat it as the loop would; the rota logs it
                self.abort()
                raise
            if self._records.left and not self._must_wait and shakes != self._open:
                self._count()  # its holder may be known by now
                if not self.is_closing():
                    return True
        self._queued = False
        self._go_on()
        return False

    def _count(self) -> None:
        """Count what is held for the peer: all that waits for a turn, and a stranger's beginning
        of a record."""
        sender, size_bytes = self._sender, len(self._records)
        strange = sender is not None and not sender.proven
        if self._certificate is not None and not self._open:
            size_bytes += SHOWN_TIMES * max(0, self._handshake_bytes - HELLO_BYTES)
        if not size_bytes or not (strange or self._stopped):
            self._reads.waiting.done(self)
            return
        holder = self._party if sender is None else STRANGERS if strange else sender.holder
        self._reads.waiting.add(self, holder, size_bytes)

    def give_way(self) -> None:
        """Too much is held: refuse it, or close the connection if that cannot be told."""
        self._error = ConnectionAbortedError("too much waits undeciphered")
        if self._sender is not None and self._open and not self._shut:
            self._records.rest()
            self._sender.give_way(asked=True)
        else:
            self.abort()

    # The handshake ------------------------------------------------------------------------------

    def _decipher(self) -> None:
        """Give OpenSSL the next slice of the waiting records."""
        records = self._records
        if self._shut:
            self._app.data_received(records.rest())
            return
        data = records.take()
        if self._open:
            self._incoming.write(data)
            self._decrypt(records.count)
            return
        self._handshake_bytes += len(data)
        if self._handshake_bytes > self._limit_bytes:
            self._error = ConnectionAbortedError("too long a handshake")
            self.abort()
            return
        self._incoming.write(data)
        if self._handshakes is not None:
            self._shaking = True
            self._handshakes.add(self._step, self._stepped, self.is_closing, self._handshake_bytes)
            self._count()
        elif self._shake_hands():
            self._decrypt(0)  # records of a handshake are not counted

    def _step(self) -> bool:
        """Go on with it, in a thread. False if it ends without a certificate. Raises OSError."""
        self._ssl.do_handshake()
        if self._certificate is None:
            return True
        self._certificate.names = names = names_shown(self._ssl)
        return names is not None

    def _stepped(self, error: OSError | None) -> None:
        """The thread has done a step. The loop may use `_ssl` again."""
        self._shaking = False
        if self.is_closing():
            return
        if self._shaken(error):
            self._decrypt(0)
        self._go_on()

    def _shake_hands(self) -> bool:
        """Go on with it, here and now. True when it is done."""
        try:
            self._ssl.do_handshake()
        except ssl.SSLError as error:
            return self._shaken(error)
        return self._shaken(None)

    def _shaken(self, error: OSError | None) -> bool:
        """A step was done. True when that was the last."""
        if error is not None:
            if isinstance(error, ssl.SSLWantReadError):
                self._flush()
            elif isinstance(error, ssl.SSLError):
                self._fail(error)
            else:  # there was no thread, or the certificate is not taken
                self._error = error
                self.abort()
            return False
        self._open = True
        self._records.single = False
        self._count()
        self._deadline.clear()
        self._flush()
        if not self.opened.done():
            self.opened.set_result(None)
        early, self._early = self._early, []
        for data in early:
            self.write(data)
        return True

    def _expired(self) -> None:
        self._error = TimeoutError("the handshake took too long")
        self.abort()

    # Records ------------------------------------------------------------------------------------

    def _decrypt(self, count: int) -> None:
        """Pass on the content of `count` records in one piece, then the end if it was told."""
        parts: list[bytes] = []
        ended = False
        failure: ssl.SSLError | None = None
        try:
            ended = self._read(parts)
        except ssl.SSLError as error:
            failure = error
        if count > len(parts):
            self._reads.charge(BARREN_COST * (count - len(parts)))
        if self._outgoing.pending:
            self._flush()
            if self._unsent:  # replies may grow without end: wait until these are taken
                self._choked = True
                self._wait()
        if parts:
            self._app.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if self.is_closing():
            return
        if failure is not None:
            self._fail(failure)
        elif ended:
            self._app.eof_received()
            self.close()

    def _read(self, parts: list[bytes]) -> bool:
        """Read the records that are here one by one. Returns whether the end was told."""
        try:  # reading when nothing is there costs an exception
            while self._incoming.pending or self._ssl.pending():
                data = self._ssl.read(READ_BYTES)
                if not data:
                    return True
                parts.append(data)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            return True
        return False

    def _flush(self) -> None:
        while self._outgoing.pending and not self.is_closing():
            self._transport.write(self._outgoing.read(WRITE_BYTES))

    def _notify(self) -> None:
        """Send close_notify once. Do not wait for the peer's."""
        if not self._shut:
            self._shut = True
            with contextlib.suppress(ssl.SSLError):  # the peer's has not come
                self._ssl.unwrap()
            self._flush()

    def _fail(self, error: ssl.SSLError) -> None:
        """The peer's TLS is not acceptable: send the alert, then close."""
        side = "client" if self._server_name is None else "backend"
        logger.debug("tls failed with=%s reason=%s", side, error.reason)
        self._error = error
        self._shut = True
        self._flush()
        self._transport.close()
