"""A client's connection: finds requests in its bytes, one at a time.

The head is checked before the body is read, and the body is counted as it comes. While a request
is being answered the connection is still read, because that is how a leaving client is noticed
(after `pause_reading` neither FIN nor RST would be); what a pipelining client sends early is kept,
bounded. A FIN in any phase is leaving: it is all that a proxy sees of a client that exits.
"""

import asyncio
from io import BytesIO
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

from proxy.answer import Answer, reset
from proxy.deadline import Deadline
from proxy.dechunk import Dechunker, MalformedChunks
from proxy.errors import (
    BodyTooLarge,
    Draining,
    MalformedHttp,
    PenstockError,
    RequestTimeout,
)
from proxy.exchange import Exchange
from proxy.heads import RequestHead, parse_request_head, unfit_beginning
from proxy.many_chunks import sliced
from proxy.paths import Route, dialect_of
from proxy.phase import Phase
from proxy.tenants import party_of

if TYPE_CHECKING:
    from proxy.plane import DataPlane

# A slow client pauses its upstream at HIGH; reading goes on below LOW.
HIGH_BYTES: Final = 262_144
LOW_BYTES: Final = 65_536
# What a pipelining client may send ahead of its answer.
SURPLUS_BYTES_MAX: Final = 131_072
# Of that, behind a request that needs no backend: every such answer copies it.
EARLY_BYTES_MAX: Final = 16_384
# Closing on unread bytes resets the connection, and its error is never seen: so they are read.
LINGER_S: Final = 2.0
LINGER_BYTES_MAX: Final = 4_194_304
# Time to send a body grows with what has arrived: this rate is always in time.
BODY_BYTES_PER_S_MIN: Final = 4_096
# A client that is one too many is told so by then, whether it has asked for anything or not.
EXCESS_S: Final = 1.0
# Requests may be on their way, while the proxy drains, on connections that clients take for open.
LAST_REQUEST_S: Final = 1.0

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(asyncio.Protocol):
    """One client's connection to the data port."""

    __slots__ = (
        "_body",
        "_body_limit_bytes",
        "_buffer",
        "_deadline",
        "_dechunker",
        "_exchange",
        "_flooded",
        "_head",
        "_http10",
        "_line_skipped",
        "_lingered_bytes",
        "_phase",
        "_plane",
        "_route",
        "_stalled_bytes",
        "_transport",
        "_unread",
        "_write_paused",
        "began_s",
        "body_bytes",
        "excess",
        "made_s",
        "party",
        "peer",
        "proven",
        "tenant",
    )

    def __init__(self, plane: "DataPlane") -> None:
        self._plane = plane
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._phase = Phase.HEAD
        self._buffer = b""
        self._head: RequestHead | None = None
        self._route: Route | None = None
        self._body: BytesIO | None = None  # what has come of it
        self.body_bytes = 0
        self._body_limit_bytes = 0  # as it was when the request's head came
        self._dechunker: Dechunker | None = None
        self._exchange: Exchange | None = None
        self._deadline = Deadline(plane.loop, self._expired)
        self._stalled_bytes = 0
        self._http10 = False  # to such a client a plain close says that an answer is whole
        self.excess = True  # one too many until it has a place: told so, or the fleet's health
        self._line_skipped = False
        self._unread = False  # a request that came early waits in the buffer
        self._flooded = False  # more came early than is kept
        self._write_paused = False  # the client takes less than it is sent
        self._lingered_bytes = 0
        self.made_s = self.began_s = 0.0
        self.peer = b""
        self.party = ""  # whom the address stands for
        self.proven = False  # it has asked for something that is not open to all
        self.tenant = ""  # whose key it has shown last

    # What the exchange and the drain do ---------------------------------------------------

    def answered(self, answer: Answer) -> None:
        """The request's answer has ended: go on to the next one, or close."""
        self._exchange = None
        self.release_body()
        self._head = None
        if self._transport.is_closing():
            self._phase = Phase.CLOSING
            self._watch_stall()  # what is unsent may never be taken
            return
        if not answer.keep_alive:
            if self._buffer:
                self._linger()  # there is more to come, and a close on it would be a reset
            else:
                self._close()
            return
        self._phase = Phase.HEAD
        self._line_skipped = False
        self._unread = bool(self._buffer)
        if self._write_paused:  # the next request waits until this answer was taken
            self._watch_stall()
            return
        self._await_request()
        if self._unread:
            self._plane.rota.add(self.party, self._read_early)

    def slept(self, time_s: float) -> None:
        """The proxy did not run for so long: the client could not be heard, nor the backend."""
        self.began_s += time_s
        self._deadline.delay(time_s)
        if self._exchange is not None:
            self._exchange.slept(time_s)

    def announce_close(self) -> None:
        """The proxy drains: the answer that is due says `close`, if it still can."""
        if self._exchange is not None and not self._exchange.answer.started:
            self._exchange.answer.keep_alive = False

    def close_if_idle(self) -> None:
        """The proxy accepts nobody new: close, unless a request is here or may be on its way."""
        if self._phase is Phase.LINGER:
            self._transport.abort()
        elif self._phase is Phase.HEAD and not self._buffer and not self._write_paused:
            self._deadline.set(self.began_s + LAST_REQUEST_S)

    @property
    def holder(self) -> str:
        return self.tenant or self.party

    @property
    def waits(self) -> bool:
        if self._exchange is not None or self._phase is Phase.BODY:
            return False
        return not self.proven or not self._transport.get_write_buffer_size()  # its answer's end

    def give_way(self) -> None:
        if self._phase is Phase.BODY:
            self._refuse(self._plane.no_room())
        elif (
            self._phase is Phase.HEAD
            and not self._buffer
            and not self._transport.get_write_buffer_size()
        ):
            self._transport.close()  # as after client_idle_s
        else:
            self.release_body()
            self._transport.abort()

    def break_off(self) -> None:
        """The drain is over: end the request that is still running."""
        if self._exchange is not None:
            self._exchange.give_up(Draining())
        else:
            self._abort()

    # What the loop calls ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_BYTES, low=LOW_BYTES)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0].encode("ascii") if peer else b""
        self.party = party_of(peer[0]) if peer else ""
        self.made_s = self.began_s = monotonic()
        if not self._plane.enter(self):
            self._turn_away()
            return
        self.excess = not self._plane.seat(self)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        if self._dechunker is None or not sliced(self, self._transport, self._plane.rota, data):
            self.receive(data)

    def receive(self, data: bytes) -> None:
        """A read, or a slice of one."""
        phase = self._phase
        if phase is Phase.HEAD:
            if not self._buffer:
                self.began_s = monotonic()
            if not self._unread and not self._write_paused:
                self._buffer += data
                self._read_head()
            else:
                self._keep(data)
        elif phase is Phase.BODY:
            self._read_body(data)
        elif phase is Phase.ANSWER:
            self._keep(data)
        elif phase is Phase.LINGER:
            self._lingered_bytes += len(data)
            if self._lingered_bytes > LINGER_BYTES_MAX and not self._flooded:
                self._transport.abort()

    def _keep(self, data: bytes) -> None:
        """What comes early is kept, to a limit; beyond it the connection ends with this answer."""
        if self._flooded:
            return
        self._buffer += data
        if len(self._buffer) > SURPLUS_BYTES_MAX:
            if not self.proven:
                self._leave()  # no answer of a backend is lost
                return
            self._flooded = True
            self._buffer = self._buffer[:1]
            if self._exchange is not None:
                self._exchange.answer.keep_alive = False

    def eof_received(self) -> None:
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.close()
        self._plane.leave(self, seated=not self.excess)
        self._buffer = b""
        if self._exchange is not None:
            self._exchange.cancel()
        else:
            self.release_body()

    def pause_writing(self) -> None:
        """The client takes less than it is sent: stop its upstream, and watch it."""
        self._write_paused = True
        if self._exchange is not None:
            self._exchange.pause()
        self._watch_stall()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._exchange is not None:
            self._deadline.clear()
            self._exchange.resume()
        elif self._phase is Phase.HEAD and self._flooded:
            self._linger()
        elif self._phase is Phase.HEAD:
            self._await_request()
            self._plane.loop.call_soon(self._read_head)

    def _await_request(self) -> None:
        """Nothing is under way: the next request has so long to begin."""
        plane = self._plane
        idle_s = LAST_REQUEST_S if plane.closing else plane.settings.timeouts.client_idle_s
        if self.excess:
            idle_s = EXCESS_S
        self.began_s = monotonic()
        self._deadline.set(self.began_s + idle_s)

    # Reading a request -------------------------------------------------------------------------

    def _read_early(self) -> bool:
        """Go on to a request that came early, in its turn."""
        self._read_head()
        return False

    def _read_head(self) -> None:
        self._unread = False
        if self._phase is not Phase.HEAD or self._write_paused or self._transport.is_closing():
            return
        # RFC 9112 2.2: one empty line before a request; more would buy time, byte by byte.
        if not self._line_skipped and self._buffer.startswith(b"\r\n"):
            self._line_skipped = True
            self._buffer = self._buffer[2:]
        data = self._buffer
        limit_bytes = self._plane.settings.limits.head_bytes
        end = data.find(b"\r\n\r\n", 0, limit_bytes + 4)
        if end < 0:
            error: PenstockError | None = unfit_beginning(data, limit_bytes)
            if error is None and not self._plane.long_heads.hold(len(data), self):
                error = self._plane.overloaded("bodies")
            if error is not None:
                self._refuse(error)
            elif data:
                head_s = self._plane.settings.timeouts.client_head_s
                self._deadline.set(self.began_s + (EXCESS_S if self.excess else head_s))
            return
        self._buffer = data[end + 4 :]
        if self.body_bytes:  # of a long head, which has ended
            self.release_body()
        try:
            self._head = parse_request_head(data[:end])
            self._route = self._plane.admit(self._head, self)
        except PenstockError as refusal:
            self._refuse(refusal)
            return
        self._begin_body(self._head)

    def _begin_body(self, head: RequestHead) -> None:
        """The head is accepted: read the body, if there is one."""
        if self._route is None:
            self._answer_here(head)
            return
        self.proven = True
        if head.length == 0:
            self._request_complete(b"")
            return
        self._body_limit_bytes = self._plane.settings.limits.body_bytes
        if head.length is not None and len(self._buffer) >= head.length:  # all of it is here
            body = self._buffer[: head.length]
            self._buffer = self._buffer[head.length :]
            if self._take(body):
                self._request_complete(body)
            return
        self._phase = Phase.BODY
        self._body = BytesIO()
        self._plane.bodies.receiving[self] = None
        self._dechunker = Dechunker() if head.length is None else None
        now_s = monotonic()
        self._deadline.set(now_s + self._plane.settings.timeouts.client_body_s)
        data, self._buffer = self._buffer, b""
        if data:
            self.data_received(data)
        elif head.expects_continue:
            self._transport.write(_CONTINUE)

    def _read_body(self, data: bytes) -> None:
        head = self._head
        assert head is not None
        dechunker = self._dechunker
        if dechunker is None:
            assert head.length is not None
            body = data[: head.length - self.body_bytes]
            self._buffer = data[len(body) :]
        else:
            try:
                body = dechunker.feed(data)
            except MalformedChunks:
                self._refuse(MalformedHttp("The chunked body is malformed."))
                return
            if dechunker.surplus:
                head.keep_alive = False  # where the next request began is lost
                self._buffer = data  # all that is known is that there was one
        if not self._take(body):
            return
        collected = cast(BytesIO, self._body)
        collected.write(body)
        if dechunker.complete if dechunker else self.body_bytes == head.length:
            del self._plane.bodies.receiving[self]
            self._body = self._dechunker = None
            self._request_complete(collected.getvalue())  # no copy: the buffer itself

    def _take(self, body: bytes) -> bool:
        """Count a piece of the body; False when a limit was passed."""
        if self.body_bytes + len(body) > self._body_limit_bytes:
            self._refuse(BodyTooLarge(self._body_limit_bytes))
            return False
        if not self._plane.reserve(len(body), self):
            self._refuse(self._plane.no_room())
            return False
        self.body_bytes += len(body)
        self._deadline.at_s += len(body) / BODY_BYTES_PER_S_MIN
        return True

    def _request_complete(self, body: bytes) -> None:
        head = self._head
        assert head is not None
        self._deadline.clear()
        self._phase = Phase.ANSWER
        self._http10 = not head.http11
        answer = self._plane.answer(self._transport, head)
        assert self._route is not None
        if head.method == b"HEAD":  # of a GET: few backends know it, and the answer has no body
            head.method = b"GET"
        self._exchange = Exchange(self._plane, self, head, self._route, answer, body)
        self._exchange.begin()

    def _answer_here(self, head: RequestHead) -> None:
        """Answer what needs no backend. A body means nothing there: none of it is kept."""
        self._deadline.clear()
        self._phase = Phase.ANSWER
        self._http10 = not head.http11
        answer = self._plane.answer(self._transport, head)
        here_bytes = len(self._buffer)
        unread = head.length is None or head.length > here_bytes or here_bytes > EARLY_BYTES_MAX
        if unread:
            answer.keep_alive = False
        else:
            self._buffer = self._buffer[head.length :]
        try:
            self._plane.answer_here(head, answer)
        except PenstockError as error:
            self._tell(error, head, answer)
        if unread:
            self._linger()
        else:
            self.answered(answer)

    def release_body(self) -> None:
        self._plane.release(self)
        self._body = self._dechunker = None

    # Refusing, leaving, closing ------------------------------------------------------------------

    def _refuse(self, error: PenstockError) -> None:
        """Answer an error before there is an exchange."""
        head = self._head
        answer = self._plane.answer(self._transport, head)
        early_bytes = len(self._buffer)
        if head is None or head.length != 0 or early_bytes > EARLY_BYTES_MAX or self.excess:
            answer.keep_alive = False  # what follows is a body that nobody reads
        self._tell(error, head, answer)
        self.release_body()
        if answer.keep_alive:
            self.answered(answer)
        else:
            self._linger()

    def _tell(self, error: PenstockError, head: RequestHead | None, answer: Answer) -> None:
        dialect = dialect_of(head.path if head is not None else b"")
        answer.fail(error, dialect.error_body(error))
        self._plane.refused(head, answer, error, self.peer)

    def _linger(self) -> None:
        """Close for writing; what still comes is read and dropped for a moment."""
        self._phase = Phase.LINGER
        self._buffer = b""
        self._stalled_bytes = self._transport.get_write_buffer_size()
        self._deadline.set(monotonic() + LINGER_S)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _turn_away(self) -> None:
        """Far too many: a word that the kernel may deliver, and no descriptor kept for it."""
        error = self._plane.overloaded("connections", "Too many connections are open; retry.")
        self._tell(error, None, self._plane.answer(self._transport, None))
        self._phase = Phase.CLOSING
        self._transport.close()

    def _leave(self) -> None:
        """The client is gone, or as good as gone."""
        self._phase = Phase.CLOSING
        self._abort()
        if self._exchange is not None:
            self._exchange.cancel()

    def _abort(self) -> None:
        if self._http10:
            reset(self._transport)
        else:
            self._transport.abort()

    def _close(self) -> None:
        """Close once what was written has been taken, or the client has stalled."""
        self._phase = Phase.CLOSING
        self._watch_stall()
        self._transport.close()

    def _watch_stall(self) -> None:
        self._stalled_bytes = self._transport.get_write_buffer_size()
        self._deadline.set(monotonic() + self._plane.settings.timeouts.client_stall_s)

    def _expired(self) -> None:
        phase = self._phase
        unsent = phase is Phase.LINGER and self._transport.get_write_buffer_size() > 0
        if self._write_paused or unsent or phase in (Phase.ANSWER, Phase.CLOSING):
            if 0 < self._transport.get_write_buffer_size() < self._stalled_bytes:
                self._watch_stall()  # slow, but reading
            else:
                self._leave()
        elif phase is Phase.HEAD and self.excess:
            self._refuse(self._plane.overloaded("connections"))
        elif phase is Phase.HEAD and not self._buffer:
            self._close()
        elif phase in (Phase.HEAD, Phase.BODY):
            self._refuse(RequestTimeout())
        elif phase is Phase.LINGER:
            self._transport.abort()
