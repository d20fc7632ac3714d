"""A connection to a backend: sends one request at a time and finds the end of its answer.

Method, status and framing tell where an answer ends. A connection is used again only when request
and answer have both ended and nothing came after them (`pool.py`).
"""

import asyncio
import logging
import select
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from penstock.proxy.errors.backend import (
    AnswerCut,
    AnswerHeadTooLarge,
    AnswerMalformed,
    BackendError,
    ConnectionReset,
)
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.wire.dechunk import Dechunker, MalformedChunks
from penstock.proxy.wire.edit import Pieces, Splices, pieces_of
from penstock.proxy.wire.heads import ResponseHead, begins_answer, parse_response_head
from penstock.proxy.wire.host import Host
from penstock.proxy.wire.long_reads import (
    FEW_BYTES,
    SHORT_BYTES,
    AnswerReads,
    LongRead,
    cost_s,
    has_many_lines,
    slice_end,
)
from penstock.proxy.wire.scheduler import Scheduler
from penstock.proxy.wire.sockets import tune

logger = logging.getLogger(__name__)

HEAD_BYTES_MAX: Final = 65_536
# The most 1xx answers before the final one. vLLM sends none.
INTERIM_MAX: Final = 16


class Sink(Protocol):
    """Receives an answer, in this order: head, body…, then end or lost."""

    def head(self, head: ResponseHead) -> None: ...
    def body(self, data: bytes) -> None: ...
    def end(self) -> None: ...
    def lost(self, error: BackendError) -> None: ...


class ConnectionOwner:
    """The owner of a connection, and what all connections to one backend share.

    Not an abstract class: with one, mypyc would check each attribute at each read.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, name: str, host: Host, now: Callable[[], float]
    ) -> None:
        self.loop = loop
        self.now = now
        self.name = name
        self.party = f"\0{name}"  # no client's name
        self.host = host
        self.reads = AnswerReads(loop, now)  # the data plane puts that of all backends here
        self.uploads = Scheduler(loop, now=now)  # and here

    def put(self, connection: "BackendConnection") -> None:
        """Take back a connection whose request and answer have both ended."""
        raise NotImplementedError

    def forget(self, connection: "BackendConnection") -> None:
        """A connection was lost. It may have been idle."""
        raise NotImplementedError

    def distrust(self) -> None:
        """The backend sent bytes that nobody asked for: use no connection twice for a while."""
        raise NotImplementedError


class BackendConnection(asyncio.Protocol):
    """One connection to a backend. `sink` receives its current answer."""

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._dechunker: Dechunker | None = None
        self._remaining: int | None = 0
        self._in_body = self._keep_alive = self._one_shot = False
        self._interim = 0
        self._to_head_request = self._paused = False
        self._pending: Callable[[int], list[Any]] = _never
        self._pieces: Pieces | None = None  # the rest of a large request body
        self._rest: LongRead | None = None  # the rest of a long read; no more is read meanwhile
        self._counted = False  # the present slice has had its turn already
        self._lost: tuple[Exception | None] | None = None  # applied when the long read is taken
        self.sink: Sink | None = None
        self.credentials = b""  # of the requests that it has served
        self.reused = False
        self.answer_began = False
        self.dear = False  # what comes next may take long to read: it waits for its turn
        self.idle_since_s = 0.0
        self.failure: Exception | None = None  # what ended it
        self.epoch = owner.host.epoch  # the epoch of the addresses by which it was dialed

    # What the exchange does ----------------------------------------------------------

    def send(
        self,
        head: bytes,
        body: bytes,
        sink: Sink,
        *,
        method: bytes,
        sender: str = "",
        replaced: Splices = (),
    ) -> None:
        """Send a request, `replaced` in its body. `sink` gets its answer. Its pieces take the
        turns of `sender`."""
        assert self.sink is None
        self.sink = sink
        self.answer_began = self.dear = self._in_body = False
        self._dechunker = None
        self._buffer = b""
        self._interim = 0
        # A server that ignores the body of a GET would read it as the next request.
        self._one_shot = method != b"POST" and bool(body)
        self._to_head_request = method == b"HEAD"
        transport = self._transport
        if transport is None or transport.is_closing():
            self.sink = None
            sink.lost(ConnectionReset())
        else:
            turns = self._owner.uploads
            self._pieces = pieces_of(turns, sender, transport, head, body, replaced)
            if self._pieces is not None:
                self._pieces.begin()  # the transport may pause it at once

    def abort(self) -> None:
        """Give up the answer and the connection, so that the backend frees its engine at once."""
        self.sink = None
        self._rest = None
        if self._pieces is not None:
            self._pieces.drop()
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading: the client cannot take more."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            if self._rest is not None:
                self._queue(self._rest)
            elif not self._transport.is_closing():
                self._transport.resume_reading()

    @property
    def behind_bytes(self) -> int:
        """The size of a long read that is not yet taken whole."""
        return self._rest.size_bytes if self._rest is not None else 0

    @property
    def unsent(self) -> bool:
        """Whether the backend has not taken all of its request yet."""
        pieces, transport = self._pieces, self._transport
        left = pieces is not None and pieces.left
        return left or (transport is not None and transport.get_write_buffer_size() > 0)

    @property
    def quiet(self) -> bool:
        """Whether it is open and nothing has come, not even bytes that the loop has not read."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        return transport.is_reading() and not self._pending(0)

    # What the loop calls --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        tune(sock)
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(sock.fileno(), select.POLLIN)
            self._pending = poll.poll

    def pause_writing(self) -> None:
        if self._pieces is not None:
            self._pieces.pause()

    def resume_writing(self) -> None:
        if self._pieces is not None:
            self._pieces.resume()

    def data_received(self, data: bytes) -> None:
        size = len(data)
        if size > SHORT_BYTES or self.dear or (size > FEW_BYTES and has_many_lines(data)):
            data = self._begin_of(data)
            if not data:
                return
        sink = self.sink
        dechunker = self._dechunker
        if sink is None:
            self._owner.distrust()  # bytes that nobody asked for
            self.abort()
        elif dechunker is not None:  # first, because most reads of streams come here
            try:
                body = dechunker.feed(data)
            except MalformedChunks:
                self._fail(AnswerMalformed())
                return
            if body:
                sink.body(body)
            if dechunker.complete:
                self._complete(surplus=dechunker.surplus)
        elif self._in_body:
            self._receive_counted(sink, data)
        else:
            self._receive_head(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._pieces is not None:
            self._pieces.drop()
        if self.dear and self._rest is None and self._lost is None and self.sink is not None:
            self._rest = LongRead(b"")  # an end may take as long as a read
            self._queue(self._rest)
        if self._rest is not None:
            self._lost = (exc,)
            return
        self._owner.forget(self)
        self.failure = exc
        sink, self.sink = self.sink, None
        if sink is None:
            return
        if not self.answer_began:
            sink.lost(ConnectionReset())
        elif self._in_body and self._dechunker is None and self._remaining is None and exc is None:
            sink.end()  # the body ends with the connection
        else:
            sink.lost(AnswerCut())

    # Long reads ---------------------------------------------------------------------------

    def _begin_of(self, data: bytes) -> bytes:
        """The part of a read that is taken in this turn. The rest waits for later turns."""
        transport = self._transport
        if self._counted or self.sink is None or transport is None:
            return data
        party, scheduler = self._owner.party, self._owner.reads.scheduler
        end = slice_end(data, 0)
        waits = self.dear or scheduler.knows(party)
        now = not waits and scheduler.take(party, cost_s(data, end))
        if now and end == len(data):
            return data
        self._rest = rest = LongRead(data)
        transport.pause_reading()
        self._queue(rest)
        return rest.next() if now else b""

    def _queue(self, rest: LongRead) -> None:
        if not rest.queued:
            rest.queued = True
            self._owner.reads.scheduler.add(self._owner.party, self._take_on)

    def _take_on(self) -> bool:
        """Take the next slice. Returns whether more can be taken now."""
        rest = self._rest
        if rest is None or self._paused:
            if rest is not None:
                rest.queued = False
            return False
        data = rest.next()
        if not rest.left:
            self._rest = None
        self._counted = True
        try:
            self.data_received(data)
        except Exception:  # treat it as the loop would
            logger.exception("answer failed")
            self._fail(AnswerMalformed())
        self._counted = False
        transport = self._transport
        if self._rest is not None:
            return True
        if self._lost is not None:
            self.connection_lost(self._lost[0])
        elif transport is not None and not self._paused and not transport.is_closing():
            transport.resume_reading()
        return False

    # Reading an answer ------------------------------------------------------------------

    def _receive_head(self, data: bytes) -> None:
        self.answer_began = True
        data = self._buffer + data if self._buffer else data
        while True:
            end = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
            if end < 0:
                if not begins_answer(data):
                    self._fail(AnswerMalformed())
                elif len(data) >= HEAD_BYTES_MAX:
                    self._fail(AnswerHeadTooLarge())
                self._buffer = data
                return
            try:
                head = parse_response_head(data[:end])
            except PenstockError:
                self._fail(AnswerMalformed())
                return
            data = data[end + 4 :]
            if head.status >= 200:
                break
            self._interim += 1
            if head.status == 101 or self._interim > INTERIM_MAX:  # nobody asked for an upgrade
                self._fail(AnswerMalformed())
                return
        self._buffer = b""
        self._begin_body(head, data)

    def _begin_body(self, head: ResponseHead, data: bytes) -> None:
        self._in_body = True
        self._keep_alive = head.keep_alive and not self._one_shot
        if self._to_head_request:
            self._remaining = 0
        elif head.status in (204, 304):
            self._remaining = head.length = 0
        elif head.chunked:
            self._dechunker = Dechunker()
        else:
            self._remaining = head.length
        sink = self.sink
        assert sink is not None
        sink.head(head)  # may replace the sink, or abort
        if self.sink is not None and (data or self._remaining == 0):
            self._counted = True
            self.data_received(data)
            self._counted = False

    def _receive_counted(self, sink: Sink, data: bytes) -> None:
        if self._remaining is None:
            sink.body(data)
            return
        taken = data if len(data) <= self._remaining else data[: self._remaining]
        self._remaining -= len(taken)
        if taken:
            sink.body(taken)
        if self._remaining == 0:
            self._complete(surplus=len(taken) < len(data))

    def _complete(self, *, surplus: bool) -> None:
        sink, self.sink = self.sink, None
        if sink is None:
            return  # the sink aborted while it took the last bytes
        transport = self._transport
        assert transport is not None
        surplus = surplus or self._rest is not None
        self._dechunker = self._rest = None
        if surplus:
            self._owner.distrust()
        try:
            sink.end()
        except Exception:  # a fault of ours must not leave the client waiting
            logger.exception("answer failed at its end")
            transport.abort()
            sink.lost(AnswerMalformed())
            return
        # Only now, when the sink has finished: its last write may still have paused the connection.
        if surplus or not self._keep_alive or self.unsent:
            transport.abort()
        else:
            self.resume()
            self._owner.put(self)

    def _fail(self, error: BackendError) -> None:
        sink = self.sink
        self.abort()
        if sink is not None:
            sink.lost(error)


def _never(timeout_ms: int) -> list[Any]:
    """Stands in where the platform cannot tell whether bytes are pending."""
    return []
