"""A client's connection: finds requests in its bytes, one at a time.

The head is checked before the body is read, and the body is counted as it comes. While a request
is being answered the connection is still read, because only so a client that leaves is noticed
(after `pause_reading` neither FIN nor RST is seen). A FIN counts as leaving, in any phase.
"""

import asyncio
from typing import Final, cast

from penstock.balancing.outliers.crashing_requests import Mark
from penstock.proxy.data.acceptance import BODY_BYTES_PER_S_MIN, accept, take, take_head
from penstock.proxy.data.account import begin_trace, left
from penstock.proxy.data.body import LANDED_BYTES_MIN, Body
from penstock.proxy.data.clients import EXCESS_S, LAST_REQUEST_S
from penstock.proxy.data.ending import (
    EARLY_BYTES_MAX,
    LINGER_BYTES_MAX,
    EndingConnection,
    Phase,
)
from penstock.proxy.data.endpoints import Endpoint
from penstock.proxy.data.exchange import Exchange
from penstock.proxy.data.local_answers import answer_here, refuse_here
from penstock.proxy.data.own_headers import answer_to
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request
from penstock.proxy.errors.client import MalformedHttp
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.telemetry.record import Record
from penstock.proxy.wire.deadline import Deadline, nothing
from penstock.proxy.wire.dechunk import MalformedChunks
from penstock.proxy.wire.heads import RequestHead, parse_request_head, unfit_beginning
from penstock.proxy.wire.ledger import LEAST_BYTES, STRANGERS
from penstock.proxy.wire.sockets import HIGH_BYTES, LOW_BYTES

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

# What the work that comes with a read costs the loop. A small request, from its head on.
HEAD_S: Final = 50e-6
# Reading so many bytes of a head takes about as long again.
HEAD_BYTES: Final = 4_096
# A byte of a body: the copies, and its hash.
BYTE_S: Final = 2e-9
# One read of a body, as large as they are.
READ_S: Final = 262_144 * BYTE_S
# A line end of a chunked body. A chunk has two.
LINE_END_S: Final = 500e-9
# A read with so few of them is taken at once: waiting would cost more.
FEW_LINE_ENDS: Final = 24
# One with very many is taken in slices.
SLICE_BYTES: Final = 4_096


class ClientConnection(EndingConnection):
    """One client's connection to the data port."""

    def __init__(self, plane: DataPlane, *, direct: bool = False) -> None:
        """`direct`: its bytes come from the socket, so that long bodies need no copy."""
        super().__init__(plane)
        self._direct = direct
        self._endpoint: Endpoint | None = None
        self._body_limit_bytes = 0  # as configured when the request's head came
        self._clock = Deadline(plane.loop, nothing, plane.now)  # one for all its exchanges
        self._line_skipped = False
        self._early = False  # the buffer waits for its turn: it came early, or too much came
        self._flooded = False  # more came early than is kept
        self._lingered_bytes = 0
        self._searched_bytes = 0  # of the present head, without finding its end
        self._rest = b""  # of a read that is taken in slices

    # What the loop calls ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_BYTES, low=LOW_BYTES)
        peer = transport.get_extra_info("peername")
        self.come_from(peer[0] if peer else "")
        self.made_s = self.began_s = self._plane.now()
        if not self._plane.clients.enter(self):  # one too many: send an error that may arrive
            answer = answer_to(self._plane, self._transport, None)
            refuse_here(self._plane, None, answer, self._plane.refusals.crowded(), self)
            self._phase = Phase.CLOSING
            self._transport.close()
            return
        self.excess = not self._plane.clients.seat(self)
        self._await_request()

    def data_received(self, data: bytes) -> None:
        body = self._body
        if body is None:
            self._receive(data)
            if len(data) > EARLY_BYTES_MAX and self._phase in (Phase.ANSWER, Phase.LINGER):
                self._pace(len(data), more=True)  # if it leaves, that is seen in its turn
            return
        line_ends = data.count(b"\n") if body.chunked else 0
        if line_ends > FEW_LINE_ENDS:
            holder, plane = self.holder, self._plane
            if not plane.scheduler.take(holder, line_ends * LINE_END_S):
                self._rest = data
                self._transport.pause_reading()
                plane.scheduler.add(holder, self._take_slice)
                plane.ledger.add(self, holder, len(data))
                return
        self._receive(data)
        self._pace(len(data), more=self._body is not None)

    def _take_slice(self) -> bool:
        """Take a slice of a read that has very many chunks. True: there is more of it."""
        if self._transport.is_closing():
            self._rest = b""
            return False
        data, self._rest = self._rest[:SLICE_BYTES], self._rest[SLICE_BYTES:]
        self._receive(data)
        if self._rest:
            return True
        self._plane.ledger.done(self)
        if not self._transport.is_closing():
            self._transport.resume_reading()
        return False

    def _pace(self, size_bytes: int, *, more: bool) -> None:
        """Charge a read. If there is `more`, and this turn has had enough, pause until its turn.

        The loop reads a connection again and again while it fills the buffer, up to 32 times.
        """
        scheduler, transport = self._plane.scheduler, self._transport
        scheduler.spend(size_bytes * BYTE_S)
        going = transport.is_reading() and not transport.is_closing()
        if more and going and scheduler.left_s <= 0.0:
            transport.pause_reading()
            scheduler.add(self.holder, self._read_on)

    def _read_on(self) -> bool:
        if not self._transport.is_closing():
            self._plane.scheduler.spend(READ_S)
            self._transport.resume_reading()
        return False

    def _receive(self, data: bytes) -> None:
        phase = self._phase
        if phase is Phase.HEAD:
            if not self._buffer:
                self.began_s = self._plane.now()
            if not self._early and not self._write_paused:
                self._buffer += data
                if self._plane.scheduler.left_s <= 0.0:
                    self._wait()
                else:
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
                # A reset could destroy the answer before it is read, and makes a proxy before this
                # one take it for dead. `LINGER_S` ends the connection.
                self._transport.pause_reading()

    def _wait(self) -> None:
        """Read the head when its turn comes: that of a tenant, an address, or all without a key.

        libuv looks for more reads before it lets timers and writes run, up to 48 times in a row. So
        a thousand busy clients could stop all streams for seconds. One that waits is not read.
        """
        self._early = True
        plane, name = self._plane, self._plane.clients.name_of(self)
        self._transport.pause_reading()
        plane.scheduler.add(name, self._read_later)
        plane.ledger.add(self, name, len(self._buffer))

    def _keep(self, data: bytes) -> None:
        """Keep bytes that came early, up to a limit. Beyond it the connection ends."""
        if self._flooded:
            return
        self._buffer += data
        if len(self._buffer) > EARLY_BYTES_MAX:
            if not self.proven:
                self._leave()  # no answer of a backend gets lost
                return
            self._flooded = True
            self._buffer = self._buffer[:1]
            if self._exchange is not None:
                self._exchange.request.answer.keep_alive = False

    def eof_received(self) -> None:
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._phase is Phase.BODY:
            left(self._plane, self._head, self._transport, self)
        elif self._write_paused and self._exchange is None:
            self._plane.metrics.client_aborts.add("unsent")
        self._write_paused = False
        self._deadline.close()
        self._clock.close()
        self._plane.ledger.done(self)
        self._plane.clients.leave(self, seated=not self.excess)
        self._buffer = self._rest = b""
        if self._exchange is not None:
            self._exchange.cancel()
        else:
            self.release_body()

    def pause_writing(self) -> None:
        """The client takes less than it is sent: stop reading from the backend."""
        self._write_paused = True
        if self._exchange is not None:
            self._exchange.pause()
        self._plane.loop.call_soon(self._count_unread)  # after all of this write

    def _count_unread(self) -> None:
        if self._write_paused:  # a closed connection keeps its unsent bytes too
            self._watch_stall()
            unsent_bytes = self._transport.get_write_buffer_size() + self._behind_bytes
            self._plane.ledger.add(self, self.holder, unsent_bytes, self._left_bytes)

    def _left_bytes(self) -> int:
        return self.untaken_bytes + self._behind_bytes

    @property
    def _behind_bytes(self) -> int:
        return self._exchange.behind_bytes if self._exchange is not None else 0

    def resume_writing(self) -> None:
        self._write_paused = False
        self._plane.ledger.done(self)
        if self._exchange is not None:
            self._deadline.clear()
            self._exchange.resume()
        elif self._phase is Phase.HEAD:
            self._go_on()

    def _await_request(self) -> None:
        self._line_skipped = False
        self._searched_bytes = 0
        idle_s = LAST_REQUEST_S if self._plane.closing else self._plane.timeouts.client_idle_s
        self.began_s = self._plane.now()
        self._deadline.set(self.began_s + (EXCESS_S if self.excess else idle_s))

    def _go_on(self) -> None:
        """Go on to the next request. If it came early, it is read when its turn comes."""
        self._await_request()
        self._early = bool(self._buffer)
        if self._early:
            self._plane.scheduler.add(self._plane.clients.name_of(self), self._read_early)

    def _read_later(self) -> bool:
        self._plane.ledger.done(self)
        if not self._transport.is_closing():
            self._transport.resume_reading()
        return self._read_early()

    def _read_early(self) -> bool:
        if self._flooded and self._buffer and self._phase is Phase.HEAD:
            self._linger()  # a part of it was not kept
        self._read_head()
        return False

    def _read_head(self) -> None:
        self._early = False
        if self._phase is not Phase.HEAD or self._write_paused or self._transport.is_closing():
            return
        # RFC 9112 2.2: one empty line may precede a request. More would buy time byte by byte.
        if not self._line_skipped and self._buffer.startswith(b"\r\n"):
            self._line_skipped = True
            self._buffer = self._buffer[2:]
            self._searched_bytes = 0
        data, searched = self._buffer, self._searched_bytes
        limit_bytes = self._plane.limits.head_bytes
        end = data.find(b"\r\n\r\n", max(0, searched - 3), limit_bytes + 4)
        read_bytes = end if end >= 0 else len(data) - searched
        self._plane.scheduler.spend(HEAD_S * (1 + read_bytes // HEAD_BYTES))
        if end < 0:
            error: PenstockError | None = unfit_beginning(data, limit_bytes, searched)
            self._searched_bytes = len(data)
            if error is not None:
                self._refuse(error)
            elif data:
                head_s = self._plane.timeouts.client_head_s
                self._deadline.set(self.began_s + (EXCESS_S if self.excess else head_s))
                holder = self.holder if self.proven else STRANGERS
                self._plane.ledger.add(self, holder, len(data))  # it may have to give way
            return
        self._buffer = data[end + 4 :]
        if searched:
            self._plane.ledger.done(self)
        try:
            self._head = parse_request_head(data[:end])
            self._head.size_bytes = end if end > LEAST_BYTES else 0
            self._endpoint = accept(self._plane, self._head, self)
        except PenstockError as refusal:
            self._refuse(refusal)
            return
        self._begin_body(self._head)

    def _begin_body(self, head: RequestHead) -> None:
        if self._endpoint is None:
            self._answer_here(head)
            return
        error = take_head(self._plane, head, self) if head.size_bytes else None
        if error is not None:
            self._refuse(error)
            return
        self.proven = True
        self._accepted_s = self._plane.now()
        if head.length == 0:
            self._request_complete(b"")
            return
        self._body_limit_bytes = self._plane.body_bytes_max + head.size_bytes  # counted with it
        if head.length is not None and len(self._buffer) >= head.length:  # all of it is here
            body, self._buffer = self._buffer, b""
            if len(body) > head.length:  # compiled code copies slices, even of all
                body, self._buffer = body[: head.length], body[head.length :]
            if self._take(len(body)):
                self._request_complete(body)
            return
        self._phase = Phase.BODY
        self._body = Body(head.path, head.length)
        self._plane.bodies.receiving[self] = None
        self._deadline.set(self._plane.now() + self._plane.timeouts.client_body_s)
        data, self._buffer = self._buffer, b""
        if data:
            self.data_received(data)
        elif head.expects_continue:
            self._transport.write(_CONTINUE)

    def _read_body(self, data: bytes) -> None:
        head, body = self._head, self._body
        assert head is not None
        assert body is not None
        try:
            piece, self._buffer = body.split(data)
        except MalformedChunks:
            self._refuse(MalformedHttp("The chunked body is malformed."))
            return
        if self._buffer and body.chunked:
            head.keep_alive = False  # it is unknown where the next request began
        if not self._take(len(piece)):
            return
        try:
            body.add(piece)
        except MemoryError:
            self._refuse(self._plane.refusals.no_room())
            return
        if body.complete:
            self._body_complete(body)
        elif self._direct and self._landing is None and body.landing_bytes >= LANDED_BYTES_MIN:
            self._land(body)

    def landed(self, piece: memoryview) -> None:
        body = self._body
        assert body is not None
        if self._take(len(piece)):
            body.land(piece)
            if body.complete:
                self._body_complete(body)
        self._pace(len(piece), more=self._body is not None)

    def _body_complete(self, body: Body) -> None:
        del self._plane.bodies.receiving[self]
        self._end_landing()
        self._body = None
        self._request_complete(*body.whole())

    def _take(self, size_bytes: int) -> bool:
        error = take(self._plane, size_bytes, self._body_limit_bytes, self)
        if error is not None:
            self._refuse(error)
            return False
        self._deadline.at_s += size_bytes / BODY_BYTES_PER_S_MIN
        return True

    def _request_complete(self, body: bytes, mark: Mark | None = None) -> None:
        head = self._head
        assert head is not None
        self._deadline.clear()
        self._phase = Phase.ANSWER
        answer = answer_to(self._plane, self._transport, head)
        assert self._endpoint is not None
        if head.method == b"HEAD":  # ask by GET: few backends know HEAD. The answer has no body
            head.method = b"GET"
        plane = self._plane
        record = Record(self.began_s, self._accepted_s, plane.now())
        request = Request(
            head, self._endpoint, answer, body, self.peer, record, plane.timeouts, plane.now, mark
        )
        begin_trace(plane, request, self.party)
        self._exchange = Exchange(plane, self, request, self._clock)
        if len(self._buffer) > EARLY_BYTES_MAX:  # the rest of a read, kept as long as the answer
            self._keep(b"")
        self._exchange.begin()

    def _answer_here(self, head: RequestHead) -> None:
        """Answer a request that needs no backend. Its body means nothing and is not kept."""
        self._deadline.clear()
        self._phase = Phase.ANSWER
        answer = answer_to(self._plane, self._transport, head)
        here_bytes = len(self._buffer)
        lacks = head.length is None or head.length > here_bytes or here_bytes > EARLY_BYTES_MAX
        if lacks:
            answer.keep_alive = False
        else:
            self._buffer = self._buffer[head.length :]
        try:
            answer_here(self._plane, head, answer)
        except PenstockError as error:
            refuse_here(self._plane, head, answer, error, self)
        if lacks:
            self._linger()
        else:
            self.answered(answer)
