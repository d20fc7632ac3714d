"""What happens to an answer's bytes: chosen by the response, run per chunk.

An event stream is held until its first token (`event_relay.py`), JSON until it is whole,
anything else is committed at its head. Until then a failure is ours to hide.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

import msgspec

from balancing.lease import Lease
from proxy.answer import Answer
from proxy.diagnosis import diagnosis
from proxy.dialects import Dialect
from proxy.dialects.dialect import UNREADABLE, Usage
from proxy.errors import AnswerAborted, AnswerCut, BackendError, StreamBroken
from proxy.heads import ResponseHead
from proxy.json_end import JsonEnd
from proxy.patience import hint_of

# A JSON answer up to this size is held whole, so that a cut one can be tried elsewhere.
WHOLE_BYTES_MAX: Final = 1_048_576
_any: Final = msgspec.json.Decoder(msgspec.Raw)

Ended = Callable[[BackendError | None], None]
Begun = Callable[[], None]
Made = Callable[[str], None]


def _nobody(error: BackendError | None) -> None:
    """Whom a relay reports to once it has reported."""


class Relay:
    """Passes an answer on as it comes; the base of the others.

    `ended` is called once: with None when the answer was passed whole, else
    with what happened; the error is retryable while nothing was committed.
    `begun` is called where it is committed before it is whole.
    """

    __slots__ = (
        "_answer",
        "_ended",
        "_head",
        "_lease",
        "_on_begun",
        "committed",
        "last_byte_s",
        "served",
        "usage",
    )

    def __init__(
        self, head: ResponseHead, answer: Answer, lease: Lease, ended: Ended, begun: Begun
    ) -> None:
        self._head = head
        self._answer = answer
        self._lease = lease
        self._ended = ended
        self._on_begun = begun
        self.committed = False
        self.served = head.status < 300  # whether it answers what was asked
        self.usage: Usage | None = None
        self.last_byte_s = monotonic()

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
        self.last_byte_s = monotonic()
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
    def over(self) -> bool:
        """Whether the answer has said that it is whole, though its framing has not ended."""
        return False

    @property
    def refused_midway(self) -> bool:
        """Whether a stream of tokens ended with an error that is told to be the request's own."""
        return False

    @property
    def status(self) -> int:
        """The status that the backend answered with."""
        return self._head.status

    @property
    def hint_s(self) -> float:
        """How long the backend asked to be left alone, in seconds; 0.0 when it did not."""
        return hint_of(self._head)

    def _report(self, error: BackendError | None) -> None:
        # Once, and then forget whom: the attempt holds this relay, and a cycle per
        # request would be the collector's to find.
        ended, self._ended = self._ended, _nobody
        ended(error)

    def _commit(self, body: bytes, now_s: float) -> None:
        self.committed = True
        if self.served:
            self._lease.first_token(now_s)
        self._answer.relay(self._head, self._head.length, body)


class JsonRelay(Relay):
    """Holds a JSON answer until it is whole, up to WHOLE_BYTES_MAX.

    `made` is told the id of the stored response that the answer is, if it is one.
    """

    __slots__ = ("_dialect", "_end", "_made", "_parts", "_size_bytes")

    def __init__(
        self,
        head: ResponseHead,
        answer: Answer,
        lease: Lease,
        ended: Ended,
        begun: Begun,
        dialect: Dialect,
        made: Made,
    ) -> None:
        super().__init__(head, answer, lease, ended, begun)
        self._dialect = dialect
        self._made = made
        self._parts: list[bytes] = []
        self._size_bytes = 0
        # Without a length it lasts until the close, and one that comes early looks the same.
        self._end = JsonEnd() if head.length is None and not head.chunked else None

    def begin(self) -> None:
        pass

    def body(self, data: bytes) -> None:
        self.last_byte_s = monotonic()
        if self._end is not None:
            self._end.feed(data)
        if self.committed:
            self._answer.write(data)
            return
        self._parts.append(data)
        self._size_bytes += len(data)
        if self._size_bytes > WHOLE_BYTES_MAX:
            self._on_begun()
            self._commit(b"".join(self._parts), self.last_byte_s)
            self._parts.clear()

    def end(self) -> None:
        cut = self._end is not None and not self._end.reached
        if not self.committed:
            body = b"".join(self._parts)
            if cut or (self._end is not None and not _is_json(body)):
                self._report(AnswerCut())
                return
            failure = self._failure(body)
            if failure is not None:
                self._report(failure)
                return
            self.usage = self._dialect.usage(body)
            if self.served and self._lease.ask.engine:
                self.served = self._dialect.serves(body, self.usage)
            response_id = self._dialect.response_id(body)
            if response_id is not None:
                self._made(response_id)
            if self._answer.started:  # a hold has sent a 200: this can only be an error
                self._answer.break_off(self._dialect.wrapped_error(body))
                self._report(None)
                return
            if self._head.length is None:
                self._head.length = len(body)
            self._commit(body, self.last_byte_s)
        elif cut:
            self.lost(AnswerCut())
            return
        super().end()

    def _failure(self, body: bytes) -> BackendError | None:
        """What a whole answer says of the backend rather than of the request."""
        if self._head.status == 500:
            return diagnosis(body)
        # What was stored of an answer is older than what its backend does now.
        if self._head.status == 200 and self._lease.ask.engine and self._dialect.aborted(body):
            return AnswerAborted()
        return None


def _may_serve(head: ResponseHead, *, generates: bool) -> bool:
    """Whether a body of this length and type may be an answer of an engine."""
    if generates:  # coded, or it would have a relay of its own
        return head.content_type in (b"application/json", b"text/event-stream")
    return head.length != 0 and head.content_type != b"text/html"


def _is_json(body: bytes) -> bool:
    try:
        _any.decode(body)
    except UNREADABLE:
        return False
    return True
