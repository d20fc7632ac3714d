"""Passes an answer's bytes to the client. The answer's head decides how.

An event stream is held until its first token (`event_relay.py`) and JSON until it is whole.
Anything else is committed at its head. Before the commit a failure can be hidden.
"""

from collections.abc import Callable
from math import inf
from typing import Final, Protocol

import msgspec

from penstock.balancing.lease import Lease
from penstock.balancing.outline import Steps
from penstock.proxy.data.answer import Answer
from penstock.proxy.data.diagnosis import diagnosis
from penstock.proxy.dialects import Dialect
from penstock.proxy.dialects.dialect import UNREADABLE, Usage
from penstock.proxy.dialects.whole import SMALL_BYTES, reading_whole, whole_of
from penstock.proxy.dialects.whole_members import Whole
from penstock.proxy.errors.backend import (
    AnswerAborted,
    AnswerCut,
    BackendError,
    ErrorTooLarge,
    InternalFault,
)
from penstock.proxy.errors.stream import StreamBroken
from penstock.proxy.wire.deadline import nothing
from penstock.proxy.wire.heads import ResponseHead
from penstock.proxy.wire.json_end import JsonEnd

# JSON answers up to this size are held whole, so that a cut one can be tried elsewhere.
WHOLE_BYTES_MAX: Final = 1_048_576
# Up to this size an answer is always held. A larger one only while the total of its backend
# (`Lease.keep`) has room.
FREE_BYTES: Final = 16_384
# The memory of each read or event beside its bytes.
OBJECT_BYTES: Final = 64
_any: Final = msgspec.json.Decoder(msgspec.Raw)


class Source(Protocol):
    """A backend's connection. `dear`: what comes next may take long to read."""

    dear: bool

    @property
    def behind_bytes(self) -> int:
        """The size of a read that is not yet taken whole."""


class Passage:
    """Where an answer goes, and who is told about it: what every relay is made of.

    `ended` is called once: with None when the whole answer was passed on, else with
    the error, which is retryable while nothing was committed. `begun` is called if
    the answer is committed before it is whole. `opened` is called when the relay has set
    its `answering_s`. `made` is called with the id of the stored response, if the answer
    is one. `in_turns` takes the steps of work that is too long for one turn of the loop.
    The backend's connection is not needed for it.
    """

    __slots__ = (
        "answer",
        "begun",
        "dialect",
        "ended",
        "in_turns",
        "lease",
        "made",
        "now",
        "opened",
        "source",
    )

    def __init__(
        self,
        answer: Answer,
        lease: Lease,
        dialect: Dialect,
        now: Callable[[], float],
        *,
        ended: Callable[[BackendError | None], None],
        begun: Callable[[], None],
        opened: Callable[[float], None],
        made: Callable[[str], None],
        in_turns: Callable[[Steps[None]], None],
        source: Source,
    ) -> None:
        self.answer = answer
        self.lease = lease
        self.dialect = dialect
        self.now = now
        self.ended = ended
        self.begun = begun
        self.opened = opened
        self.made = made
        self.in_turns = in_turns
        self.source = source


def _nobody(error: BackendError | None) -> None:
    """The receiver after a relay has reported: it reports once."""


def _no_turns(steps: Steps[None]) -> None:
    """Takes the place of a relay's turns after it has reported."""


class Relay:
    """Passes an answer on as it comes. The base of the other relays."""

    __slots__ = (
        "_answer",
        "_ended",
        "_head",
        "_lease",
        "_now",
        "_on_begun",
        "answering_s",
        "committed",
        "goes_on",
        "last_byte_s",
        "response_id",
        "served",
        "usage",
    )

    def __init__(self, head: ResponseHead, passage: Passage) -> None:
        self._head = head
        self._answer = passage.answer
        self._lease = passage.lease
        self._ended = passage.ended
        self._on_begun = passage.begun
        self._now = passage.now
        self.committed = False
        self.served = head.status < 300  # whether it is what the client asked for
        self.usage: Usage | None = None
        self.response_id = ""  # of the stored response that a whole answer tells
        # Whether its engine works on, also if nobody reads the answer.
        self.goes_on = self.served and passage.lease.ask.background
        self.last_byte_s = self._now()
        # When the backend counts as answering, if no token has come by then.
        self.answering_s = inf

    def begin(self) -> None:
        """The head was read: commit at once."""
        ask = self._lease.ask
        if ask.engine and not _may_serve(self._head, generates=ask.generates):
            self.served = False
        self.committed = True
        self._on_begun()
        self._answer.relay(self._head, self._head.length)

    def head(self, head: ResponseHead) -> None:
        raise AssertionError("an answer has one head")

    def body(self, data: bytes) -> None:
        self.last_byte_s = self._now()
        if self.served and self._lease.prefilling:
            self._lease.first_token(self.last_byte_s)
        self._answer.write(data)

    def end(self) -> None:
        if not self._answer.body_bytes:
            self.served = False
        self._answer.finish()
        self._report(None)

    def lost(self, error: BackendError) -> None:
        self._report(StreamBroken(error.reason, error) if self.committed else error)

    @property
    def flows(self) -> bool:
        """Whether more of the answer must come within `idle_s`."""
        return self.committed

    @property
    def over(self) -> bool:
        """Whether the answer has said that it is whole, though its framing has not ended."""
        return False

    @property
    def refused_midway(self) -> bool:
        """Whether a stream of tokens ended with an error that the request itself caused."""
        return False

    @property
    def status(self) -> int:
        """The status that the backend answered with."""
        return self._head.status

    @property
    def meant_status(self) -> int:
        """The same, or that of the error with which its stream begins."""
        return self.status

    @property
    def is_over(self) -> bool:
        """Whether a whole answer tells of a stored response that is made no more."""
        return bool(self.response_id) and not self.goes_on

    @property
    def is_queued(self) -> bool:
        """Whether it tells of a response on which its engine goes on, and nothing of it yet."""
        return bool(self.response_id) and self.goes_on

    def pass_on(self) -> None:
        """Pass on an answer that was reported as a failure: no backend gave a better one."""
        raise AssertionError("this answer was not kept")

    def let_go(self) -> None:
        """Nobody wants the answer any more, or all of it was passed on."""
        self._ended, self._on_begun = _nobody, nothing  # they lead to the attempt, which leads here

    def _report(self, error: BackendError | None) -> None:
        # Report once, then forget the receiver. The attempt holds this relay, and a cycle for each
        # request would be left to the garbage collector.
        ended, self._ended, self._on_begun = self._ended, _nobody, nothing
        ended(error)

    def _commit(self, body: bytes, now_s: float) -> None:
        self.committed = True
        if self.served and not self.is_queued:  # an API server tells that, also if its engine hangs
            self._lease.first_token(now_s)
        self._answer.relay(self._head, self._head.length, body)


class JsonRelay(Relay):
    """Holds a JSON answer, or a 500, until it is whole, up to WHOLE_BYTES_MAX.

    `reports_500`: one of up to FREE_BYTES is reported as a failure, and kept.
    """

    __slots__ = (
        "_dialect",
        "_end",
        "_in_turns",
        "_made",
        "_parts",
        "_reports_500",
        "_size_bytes",
        "_source",
    )

    def __init__(self, head: ResponseHead, passage: Passage, *, reports_500: bool = False) -> None:
        super().__init__(head, passage)
        self._reports_500 = reports_500
        self._dialect = passage.dialect
        self._made = passage.made
        self._in_turns = passage.in_turns
        self._source = passage.source
        self._parts: list[bytes] = []
        self._size_bytes = 0
        # Without a length the answer ends with the connection, and an early close looks the same.
        json = head.content_type == b"application/json" and not head.encoded
        self._end = JsonEnd() if json and head.length is None and not head.chunked else None

    def begin(self) -> None:
        pass

    def body(self, data: bytes) -> None:
        self.last_byte_s = self._now()
        if self._end is not None:
            self._end.feed(data)
        if self.committed:
            self._answer.write(data)
            return
        self._parts.append(data)
        self._size_bytes += len(data)
        size_bytes = self._size_bytes
        kept_bytes = size_bytes + OBJECT_BYTES * len(self._parts)
        if kept_bytes <= FREE_BYTES:
            return
        kept_bytes += self._source.behind_bytes  # it has a part of these, too
        if size_bytes > WHOLE_BYTES_MAX or not self._lease.keep(kept_bytes):
            self._begin_early()

    @property
    def flows(self) -> bool:
        return self._size_bytes > 0

    def _begin_early(self) -> None:
        """Begin to pass on an answer that is too large to hold.

        If a hold has promised a stream of events, that is impossible: half an answer is no event.
        """
        if self._answer.started:
            self.served = False
            self._answer.break_off(self._dialect.error_event(ErrorTooLarge()))
            self._report(None)
            return
        body = self._joined()
        self._lease.keep(0)
        response_id = self._dialect.id_at_beginning(body) if self.served else None
        if response_id is not None:
            self.response_id = response_id
            self._made(response_id)
        self._on_begun()
        self._commit(body, self.last_byte_s)

    def end(self) -> None:
        cut = self._end is not None and not self._end.reached
        if cut:
            self.lost(AnswerCut())
        elif self.committed:
            super().end()
        elif self._size_bytes <= SMALL_BYTES:
            body = self._joined()
            self._conclude(body, whole_of(body))
        else:
            self._in_turns(self._reading(self._joined()))

    def let_go(self) -> None:
        super().let_go()
        self._in_turns = _no_turns  # it leads to the attempt, too

    def _joined(self) -> bytes:
        """What is held. It waits for its turns once, not twice."""
        body = b"".join(self._parts)
        self._parts.clear()
        return body

    def _reading(self, body: bytes) -> Steps[None]:
        whole = yield from reading_whole(body)
        self._conclude(body, whole)

    def _conclude(self, body: bytes, whole: Whole | None) -> None:
        """Pass on a whole answer, or report what it says of the backend."""
        if self._end is not None and whole is None and not _is_json(body):
            self._report(AnswerCut())
            return
        failure = self._failure(body, whole)
        if failure is not None:
            self._parts.append(body)
            self._report(failure)
            return
        self._learn(whole)
        self._pass_whole(body)

    def _pass_whole(self, body: bytes) -> None:
        if self._answer.started:  # a hold has sent the 200: this can only be an error
            self._answer.break_off(self._dialect.wrapped_error(body))
            self._report(None)
            return
        if self._head.length is None:
            self._head.length = len(body)
        self._commit(body, self.last_byte_s)
        super().end()

    def pass_on(self) -> None:
        self._pass_whole(self._joined())

    def _learn(self, whole: Whole | None) -> None:
        """Note the usage, whether it is what was asked for, and which response it stores."""
        usage = self.usage = self._dialect.usage(whole) if whole is not None else None
        if self.served and self._lease.ask.engine and not self._counts_work(usage):
            self.served = whole is not None and self._dialect.serves(whole)
        response_id = self._dialect.response_id(whole) if whole is not None else None
        if whole is not None:
            self.goes_on = self._dialect.goes_on(whole)
        if response_id is not None:
            self.response_id = response_id
            self._made(response_id)

    def _counts_work(self, usage: Usage | None) -> bool:
        """Whether the engine reports tokens that it worked on, so the answer is no empty one."""
        if usage is None:
            return False
        generates = self._lease.ask.generates
        return (usage.completion_tokens if generates else usage.prompt_tokens) > 0

    def _failure(self, body: bytes, whole: Whole | None) -> BackendError | None:
        """The failure of the backend, if the answer tells one and not one of the request."""
        if self._head.status == 500:
            reports = self._reports_500 and len(body) <= FREE_BYTES
            return diagnosis(body) or (InternalFault() if reports else None)
        # A stored answer is older than the present state of its backend.
        if self._head.status != 200 or not self._lease.ask.engine or whole is None:
            return None
        return AnswerAborted() if self._dialect.aborted(whole) else None


def _may_serve(head: ResponseHead, *, generates: bool) -> bool:
    """Whether a body of this length and type may be an engine's answer."""
    if generates:  # the content is encoded, otherwise another relay would handle it
        return head.content_type in (b"application/json", b"text/event-stream")
    return head.length != 0 and head.content_type != b"text/html"


def _is_json(body: bytes) -> bool:
    """Whether it is any small JSON value."""
    if len(body) > SMALL_BYTES:
        return False
    try:
        _any.decode(body)
    except UNREADABLE:
        return False
    return True
