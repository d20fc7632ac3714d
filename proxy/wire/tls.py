"""TLS between a socket's transport and the protocol that uses it, on either leg.

It is a transport for the protocol behind it and a protocol for the transport before it. asyncio's
own TLS is not used, because it would break promises of the data plane. Its write buffer does not
count encrypted bytes (a slow reader looks like a stalled one), a connection counts only after its
handshake, one direction cannot be closed alone, and closing waits for the peer.

An answer is whole only if `close_notify` has told its end. For the protocol behind, a bare FIN is a
lost connection.

A step of a server's handshake may take 1.6 ms (a private key of RSA with 2,048 bits). So these
steps have turns of their own, apart from those for bodies. A step that reads certificates may take
200 ms. So a thread does all steps with a backend (`handshakes.py`), and with a client that is asked
for a certificate (`client_handshakes.py`). Meanwhile the loop does not touch `_ssl`.

Reads of very many records are taken in turns (`records.py`). A peer that sends too many records
without data is disconnected. One that does not take our replies to its key updates is not read.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from time import monotonic
from typing import Final, cast

from penstock.proxy.wire.client_handshakes import AskedClient
from penstock.proxy.wire.deadline import Deadline
from penstock.proxy.wire.handshake_size import HandshakeSize
from penstock.proxy.wire.handshakes import Handshakes
from penstock.proxy.wire.ledger import Sender
from penstock.proxy.wire.party import STRANGERS, party_of
from penstock.proxy.wire.records import BARREN_MAX, RecordReads, Records
from penstock.proxy.wire.scheduler import Scheduler
from penstock.proxy.wire.tls_transport import TlsTransport

logger = logging.getLogger(__name__)

# More than a record holds (16 KiB). OpenSSL returns one record at a time.
READ_BYTES: Final = 65_536

_NOBODY: Final = asyncio.Protocol()


class TlsConnection(TlsTransport):
    """One TLS connection. `app` is the protocol that reads and writes the plain text."""

    __slots__ = (
        "_app",
        "_asked",
        "_choked",
        "_context",
        "_deadline",
        "_handshake_s",
        "_handshakes",
        "_incoming",
        "_on_failure",
        "_party",
        "_queued",
        "_reads",
        "_records",
        "_rota",
        "_sender",
        "_shaking",
        "_size",
        "_unsent",
        "opened",
    )

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
        asked: AskedClient | None = None,
        sender: Sender | None = None,
    ) -> None:
        """`server_name`: the server that a client wants to reach. None on the server's side.

        A server's handshakes take the turns of `rota`, a client's a thread of `handshakes`, and a
        server's that asks for a certificate a thread of `asked`.
        `reads` is shared by the connections that may not block the loop together. `sender` is the
        client, on the server's side: it is refused if too many of its bytes wait. `opened` is done
        after the handshake, or holds the OSError of its failure.
        """
        super().__init__(server_name)
        self._app = app
        self._context = context
        self._handshake_s = handshake_s
        self._on_failure = on_failure
        self._rota = rota
        self._handshakes = handshakes
        self._asked = asked
        self._sender = sender
        self._reads = reads
        self._records = Records(strange=sender is not None, single=asked is not None)
        self._queued = False  # it waits for its turn or has it
        self._unsent = False  # the transport's write buffer is above its limit
        self._choked = False  # our replies to key updates are unsent: decipher nothing meanwhile
        self._deadline = Deadline(loop, self._expired)
        self._incoming = ssl.MemoryBIO()
        self._party = ""  # the party of the peer's address
        self._shaking = False  # a step is in a thread or waits for it: only it may use `_ssl`
        self._size = HandshakeSize(server=server_name is None, asks=asked is not None)
        self.opened: asyncio.Future[None] = loop.create_future()

    # What the loop calls ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._party = party_of(peer[0]) if peer else ""
        name = self._server_name
        self._ssl = self._context.wrap_bio(
            self._incoming, self._outgoing, server_side=name is None, server_hostname=name
        )
        if self._asked is not None:
            self._handshakes = self._asked.enter(self._party, self._ssl, self.abort)
        self._deadline.set(monotonic() + self._handshake_s)
        self._app.connection_made(cast(asyncio.Transport, self))
        if not self.is_closing():
            self._shake_hands()

    def data_received(self, data: bytes) -> None:
        if self._shut:
            self._app.data_received(data)  # undeciphered: it is only counted and dropped
            return
        records = self._records
        if self._open and records.is_one(data) and not self._choked:
            self._incoming.write(data)
            self._decrypt(1)
            return
        waited = records.left
        records.add(data)
        if not self._open and self._rota is not None:
            if len(records) > READ_BYTES:
                self._stop()
            self._wait(self._rota)
        elif not records.left:
            self._keep_part()
        elif (
            waited
            or self._choked
            or (not self._open and self._handshakes is not None)
            or not records.fit()
            or not self._reads.take(records.count, counted=records.counted)
        ):
            self._stop()
            self._wait(self._reads.rota)
        else:
            self._decipher()
            if records.keeps_parts:
                self._keep_part()

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
        if self._asked is not None:
            self._asked.leave()
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
        """A load balancer tells whose connection it is, before the first byte of the handshake."""
        self._party = party_of(address)
        if self._asked is not None:
            self._handshakes = self._asked.move(self._party)

    def abort(self) -> None:
        """Close it at once. After a cancelled dial, uvloop's transport still looks open."""
        self._aborted = True
        self._reads.waiting.done(self)
        if self._transport is not None:
            self._transport.abort()

    # Inside -----------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Stop reading until the waiting bytes have had their turns."""
        if not self._stopped:
            self._stopped = True
            self._transport.pause_reading()

    def _go_on(self) -> None:
        """A reason to stop is gone: take waiting bytes in a turn, or read on if there are none."""
        if not self._stopped or self._must_wait or self.is_closing():
            return
        if self._records.left:
            self._queue(self._reads.rota)
        else:
            self._stopped = False
            self._transport.resume_reading()

    @property
    def _must_wait(self) -> bool:
        return self._held or self._choked or self._shaking

    def _wait(self, rota: Scheduler) -> None:
        """Take the bytes that came in their turn. They count among all waiting bytes."""
        self._queue(rota)
        self._count_waiting()

    def _count_waiting(self) -> None:
        sender, holder = self._sender, self._party
        if sender is not None:
            holder = sender.holder if sender.proven else STRANGERS
        self._reads.waiting.add(self, holder, len(self._records))

    def _keep_part(self) -> None:
        """No whole record waits any more, but maybe a part of one. OpenSSL gets a known peer's."""
        records, sender = self._records, self._sender
        if records.keeps_parts and (sender is None or sender.proven):
            records.trust()
            if records.left and not self.is_closing():
                self._decipher()
        if records.keeps_parts and len(records):
            self._count_waiting()
        else:
            self._reads.waiting.done(self)

    def give_way(self) -> None:
        """Too many bytes wait: refuse them, or close the connection if that cannot be told."""
        self._error = ConnectionAbortedError("too much waits undeciphered")
        if self._sender is not None and self._open and not self._shut:
            self._records.rest()
            self._sender.give_way(asked=True)
        else:
            self.abort()

    def _queue(self, rota: Scheduler) -> None:
        """Take the next step in a turn. Bytes that come meanwhile are kept."""
        if not self._queued:
            self._queued = True
            rota.add(self._party, self._take_turn)

    def _take_turn(self) -> bool:
        """Take the next step. Returns whether more steps follow in the same turns."""
        shakes = not self._open and self._rota is not None
        if not (self._must_wait or self.is_closing()):
            try:
                self._decipher()
                if not self._records.left:
                    self._keep_part()
            except Exception:  # treat it as the loop would; the rota logs it
                self.abort()
                raise
        if self.is_closing():
            return False
        if self._records.left:
            self._stop()
            self._count_waiting()  # its holder may be known by now
            own = shakes == (not self._open and self._rota is not None)
            if own and not self._must_wait:
                return True
        self._queued = False
        self._go_on()
        return False

    def _decipher(self) -> None:
        """Decipher the next slice of the waiting bytes."""
        records = self._records
        if self._shut:
            self._app.data_received(records.rest())
            return
        data = records.take()
        if self._open:
            self._incoming.write(data)
            self._decrypt(records.count)
        elif self._size.takes(len(data), records.hello_bytes):
            if self._asked is not None:
                self._asked.hold(self._size.bytes)
            self._incoming.write(data)
            if self._handshakes is not None:
                self._shaking = True
                step = self._ssl.do_handshake if self._asked is None else self._asked.step
                self._handshakes.add(step, self._stepped, self.is_closing, self._size.bytes)
            elif self._shake_hands():
                self._decrypt(0)  # records of a handshake are not counted
        else:
            self._error = ConnectionAbortedError("too long a handshake")
            self.abort()

    def _stepped(self, error: OSError | None) -> None:
        """The thread has done a step. The loop may use `_ssl` again."""
        self._shaking = False
        if self.is_closing():
            return
        if self._shaken(error):
            self._decrypt(0)
        self._go_on()

    def _shake_hands(self) -> bool:
        """Go on with the handshake, here and now. True when it is done."""
        try:
            self._ssl.do_handshake()
        except ssl.SSLError as error:
            return self._shaken(error)
        return self._shaken(None)

    def _shaken(self, error: OSError | None) -> bool:
        """A step of the handshake was done. True when that was the last."""
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
        if self._asked is not None:
            self._asked.leave()
        self._records.shaken()
        self._deadline.clear()
        self._flush()
        if not self.opened.done():
            self.opened.set_result(None)
        early, self._early = self._early, []
        for data in early:
            self.write(data)
        return True

    def _decrypt(self, count: int) -> None:
        """Pass on the content of `count` records in one piece, then the end if it was told."""
        parts: list[bytes] = []
        ended = False
        failure: ssl.SSLError | None = None
        try:
            ended = self._read(parts)
        except ssl.SSLError as error:
            failure = error
        if count != len(parts) or self._records.barren:
            self._records.tally(count, len(parts), self._reads)
        if self._outgoing.pending:
            self._flush()
            if self._unsent:  # replies may grow without end: wait until these are taken
                self._choked = True
                self._stop()
        if parts:
            self._app.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if self.is_closing():
            return
        if failure is not None:
            self._fail(failure)
        elif ended:
            self._app.eof_received()
            self.close()
        elif self._records.barren > BARREN_MAX:
            self._error = ConnectionAbortedError("records without data")
            logger.debug("tls failed with=%s reason=NO_DATA", self._side)
            self.abort()

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

    def _expired(self) -> None:
        self._error = TimeoutError("the handshake took too long")
        self.abort()
