"""How a client's connection ends: it is refused, left, stalled, or loses its room.

An error is sent before the connection closes, and what the client still sends is read for a moment:
a close with bytes that nobody has read resets the connection and destroys the error. An answer that
is cut ends with a reset, because it could look whole otherwise.
"""

import asyncio
from enum import Enum
from typing import Final, cast

from penstock.proxy.data.account import left
from penstock.proxy.data.answer import Answer
from penstock.proxy.data.bodies import HELD_S
from penstock.proxy.data.body import Body, Landed, Landing
from penstock.proxy.data.clients import LAST_REQUEST_S
from penstock.proxy.data.exchange import Exchange
from penstock.proxy.data.local_answers import refuse_here
from penstock.proxy.data.own_headers import answer_to, budget_headers
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request
from penstock.proxy.errors.client import RequestTimeout
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.errors.own import Draining
from penstock.proxy.wire.certificates import ClientCertificate
from penstock.proxy.wire.client_address import party_of
from penstock.proxy.wire.deadline import Deadline
from penstock.proxy.wire.heads import RequestHead
from penstock.proxy.wire.sockets import reset, unacknowledged_bytes

# What a pipelining client may send before its answer has ended. Each answer copies these bytes.
EARLY_BYTES_MAX: Final = 16_384
# A close with unread bytes resets the connection and destroys the error. So they are read.
LINGER_S: Final = 2.0
LINGER_BYTES_MAX: Final = 4_194_304
# What an idle connection takes. With TLS it was measured over 3,600 of them: 29 KB.
PLAIN_BYTES: Final = 4_096
TLS_BYTES: Final = 32_768


class Phase(Enum):
    """What the next bytes of the connection are."""

    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"  # a request is being answered: the bytes belong to the next one
    LINGER = "linger"  # an error was sent: the bytes are dropped
    CLOSING = "closing"


class EndingConnection(Landed):
    """A client's connection but for its requests, which `ClientConnection` finds."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._phase = Phase.HEAD
        self._buffer = b""
        self._head: RequestHead | None = None
        self._body: Body | None = None  # while it arrives
        self._landing: Landing | None = None  # while a long body comes without a copy
        self._exchange: Exchange | None = None
        self._pool = ""
        self._deadline = Deadline(plane.loop, self._expired, plane.now)
        self._write_paused = False  # the client takes less than it is sent
        self._stalled_bytes = self.body_bytes = 0
        self.excess = True  # it has no seat: it gets an error, or the fleet's health
        self.made_s = self.began_s = self._accepted_s = 0.0
        self.peer = b""
        self.party = ""  # whom the address stands for
        self.source = ""  # the address of the connection, or of whom the PROXY protocol tells
        self.proven = False  # a request that is not open to all was accepted
        self.tenant = ""  # the tenant whose key or certificate it has shown last
        self.certificate: ClientCertificate | None = None  # None: it was not asked for one

    def come_from(self, address: str) -> None:
        self.source = address
        self.asks_from(address)

    def asks_from(self, address: str) -> None:
        self.peer, self.party = address.encode("ascii"), party_of(address)

    def _go_on(self) -> None:
        """Go on to the next request."""

    # What the exchange, the limits and the drain do ---------------------------------------------

    def answered(self, answer: Answer) -> None:
        """The answer has ended: go on to the next request, or close."""
        self._pool = self.pool
        self._exchange = None
        self.release_body()
        self._head = None
        if self._transport.is_closing():
            self._phase = Phase.CLOSING
            self._watch_stall()  # the client may never take what is unsent
        elif not answer.keep_alive and self._buffer:
            self._linger()  # unread bytes would turn the close into a reset
        elif not answer.keep_alive:
            self._close()
        else:
            self._phase = Phase.HEAD
            if self._write_paused:  # the next request waits until the client took this answer
                self._watch_stall()
            else:
                self._go_on()

    def slept(self) -> None:
        """The proxy did not run for a while: what has come meanwhile is read now."""
        if self._exchange is not None:
            self._exchange.slept()

    def announce_close(self) -> None:
        """The proxy drains: an answer that has not started will say `close`."""
        if self._exchange is not None and not self._exchange.request.answer.started:
            self._exchange.request.answer.keep_alive = False

    def outdate(self) -> None:
        """The authorities of certificates have changed: take no request after the present one."""
        if self._exchange is not None:
            self._exchange.request.answer.keep_alive = False
        elif self._head is not None:  # its body is still coming
            self._head.keep_alive = False
        self.close_if_idle()

    def close_if_idle(self) -> None:
        """The proxy accepts no new clients: close, unless a request is here or may be coming."""
        if self._phase is Phase.HEAD and not self._buffer and not self._write_paused:
            self._deadline.set(self.began_s + LAST_REQUEST_S)

    @property
    def holder(self) -> str:
        """The tenant, or else the address, that is charged for what this client holds."""
        return self.tenant or self.party

    @property
    def waits(self) -> bool:
        if self._exchange is not None or self._phase is Phase.BODY:
            return False
        return not self.proven or not self._transport.get_write_buffer_size()  # the answer's end

    @property
    def pool(self) -> str:
        return self._exchange.request.record.pool if self._exchange is not None else self._pool

    @property
    def untaken_bytes(self) -> int:
        unsent = self._transport.get_write_buffer_size()
        return unsent + unacknowledged_bytes(self._transport)

    @property
    def request(self) -> Request | None:
        """The one under way, if its body is here."""
        return self._exchange.request if self._exchange is not None else None

    def kept_bytes(self, *, refusing: bool) -> int:
        """What it has kept for a second, beside a request that runs and an unread answer."""
        unread_bytes = self._transport.get_write_buffer_size()
        under_way = self._phase is Phase.ANSWER or self._write_paused
        under_way = under_way or not self._transport.is_reading()  # its bytes wait for their turn
        young = self._plane.now() - self.began_s < HELD_S
        if under_way or young or (not refusing and (unread_bytes or self._phase is Phase.BODY)):
            return 0
        read_bytes = self.body_bytes + len(self._buffer)
        plain = self._transport.get_extra_info("ssl_object") is None
        return read_bytes + unread_bytes + (PLAIN_BYTES if plain else TLS_BYTES)

    def give_way(self, *, asked: bool = False) -> None:
        """Lose its room. `asked`: bytes that it has sent wait to be read."""
        idle = not (self._buffer or self._transport.get_write_buffer_size())
        if self._phase is Phase.BODY or (asked and self._phase is Phase.HEAD):
            if self._phase is Phase.HEAD and not self._buffer:
                self.began_s = self._plane.now()  # nothing of its request was read
            self._refuse(self._plane.refusals.no_room())
        elif self._phase is Phase.HEAD and idle:
            self._transport.close()  # as after client_idle_s
        else:
            self.release_body()
            unread = self._transport.get_write_buffer_size() > 0
            if unread or self._exchange is not None:
                error = self._plane.refusals.overloaded("unread" if unread else "bodies")
                if self._exchange is not None:
                    self._exchange.give_up(error)
            self._write_paused = False  # it is not the client that leaves
            self._buffer = b""
            self._abort()

    def break_off(self) -> None:
        """The drain is over: end the running request."""
        if self._exchange is not None:
            self._exchange.give_up(Draining())
        elif self._phase is Phase.BODY:
            self._refuse(Draining())
        else:
            self._abort()

    def release_body(self, kept_bytes: int = 0) -> None:
        """Give back the room of the body, but for so many bytes that the request still holds."""
        self._end_landing()
        if self._body is not None:
            self._plane.scheduler.free(self.holder, self._body)
            self._body = None
        bodies, kept_bytes = self._plane.bodies, min(kept_bytes, self.body_bytes)
        bodies.receiving.pop(self, None)
        bodies.release(self.body_bytes - kept_bytes, self)
        self.body_bytes = kept_bytes

    def _land(self, body: Body) -> None:
        """Have the rest of the body read straight into its buffer."""
        self._landing = Landing(self, body)
        self._receive_by(self._landing)

    def _end_landing(self) -> None:
        """Nothing more comes of the body: what comes now is for the connection."""
        if self._landing is not None:
            self._landing.end()
            self._landing = None
            self._receive_by(self)

    def _receive_by(self, protocol: asyncio.BaseProtocol) -> None:
        """Change the protocol. uvloop asks what kind it is only when reading begins."""
        transport = self._transport
        reading = transport.is_reading()
        if reading:
            transport.pause_reading()
        transport.set_protocol(protocol)
        if reading:
            transport.resume_reading()

    # The ends -----------------------------------------------------------------------------------

    def _refuse(self, error: PenstockError) -> None:
        self._plane.ledger.done(self)
        head = self._head
        answer = answer_to(self._plane, self._transport, head)
        if head is not None and head.tenant in self._plane.budgets.tenants:
            answer.tell(budget_headers(self._plane, head))
        if not (head and head.length == 0 and len(self._buffer) <= EARLY_BYTES_MAX) or self.excess:
            answer.keep_alive = False  # a body follows that nobody will read
        refuse_here(self._plane, head, answer, error, self)
        self.release_body()
        if answer.keep_alive:
            self.answered(answer)
        else:
            self._linger()

    def _linger(self) -> None:
        """Close for writing. For a moment still read and drop what comes."""
        self._phase = Phase.LINGER
        self._buffer = b""
        self._watch_stall()
        if not self._stalled_bytes:
            self._deadline.set(self._plane.now() + LINGER_S)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _leave(self) -> None:
        """The client is gone, or counts as gone."""
        if self._phase is Phase.BODY:
            left(self._plane, self._head, self._transport, self)
        self._phase = Phase.CLOSING
        self._abort()
        if self._exchange is not None:
            self._exchange.cancel()

    def _abort(self) -> None:
        """Close at once; with a reset if an answer is cut: it could look whole otherwise."""
        begun = self._exchange is not None and self._exchange.request.answer.started
        if begun or self._transport.get_write_buffer_size():
            reset(self._transport)
        else:
            self._transport.abort()

    def _close(self) -> None:
        """Close after the client has taken everything, or has stalled."""
        self._phase = Phase.CLOSING
        self._watch_stall()
        self._transport.close()

    def _watch_stall(self) -> None:
        self._stalled_bytes = self._transport.get_write_buffer_size()
        self._deadline.set(self._plane.now() + self._plane.timeouts.client_stall_s)

    def _expired(self) -> None:
        phase, unsent_bytes = self._phase, self._transport.get_write_buffer_size()
        lingers = phase is Phase.LINGER and unsent_bytes > 0
        if self._write_paused or lingers or phase in (Phase.ANSWER, Phase.CLOSING):
            if 0 < unsent_bytes < self._stalled_bytes:
                self._watch_stall()  # slow, but reading
            else:
                self._leave()
        elif phase is Phase.HEAD and self.excess:
            self._refuse(self._plane.refusals.overloaded("connections"))
        elif phase is Phase.HEAD and not self._buffer:
            self._close()
        elif phase in (Phase.HEAD, Phase.BODY):
            self._refuse(RequestTimeout())
        elif phase is Phase.LINGER:
            self._transport.abort()
