"""What happens to an answer's bytes: chosen by the response, run per chunk.

An event stream is held until its first token, JSON until it is whole, anything
else is committed at its head. Until then a failure is ours to hide. After the
first token the relay costs one count, one comparison, one clock read and one
write a chunk; it awaits nothing and parses only what is out of the ordinary.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

import msgspec

from balancing.lease import Lease
from proxy.answer import Answer
from proxy.diagnosis import diagnosis
from proxy.dialects import Dialect
from proxy.dialects.dialect import UNREADABLE, Sign, Usage
from proxy.errors import (
    AnswerAborted,
    AnswerCut,
    AnswerDropped,
    AnswerEmpty,
    BackendBusy,
    BackendError,
    BackendRefused,
    StreamBroken,
)
from proxy.heads import ResponseHead
from proxy.metrics import Histogram
from proxy.patience import hint_of

# A JSON answer up to this size is held whole, so that a cut one can be tried elsewhere.
WHOLE_BYTES_MAX: Final = 1_048_576
# What a stream may send before its first token (a responses preamble repeats the request).
HELD_BYTES_MAX: Final = 1_048_576
# An event larger than this passes in pieces, unread. The last one of a responses stream repeats
# what its preamble did, and holds the output.
EVENT_BYTES_MAX: Final = 2_097_152

_NOTHING_ORDINARY: Final = b"\x00"  # never in an event: every read is inspected

_any: Final = msgspec.json.Decoder(msgspec.Raw)

Ended = Callable[[BackendError | None], None]
Made = Callable[[str], None]


def _nobody(error: BackendError | None) -> None:
    """Whom a relay reports to once it has reported."""


class Relay:
    """Passes an answer on as it comes; the base of the others.

    `ended` is called once: with None when the answer was passed whole, else
    with what happened; the error is retryable while nothing was committed.
    """

    __slots__ = (
        "_answer",
        "_ended",
        "_head",
        "_lease",
        "committed",
        "last_byte_s",
        "usage",
    )

    def __init__(self, head: ResponseHead, answer: Answer, lease: Lease, ended: Ended) -> None:
        self._head = head
        self._answer = answer
        self._lease = lease
        self._ended = ended
        self.committed = False
        self.usage: Usage | None = None
        self.last_byte_s = monotonic()

    def begin(self) -> None:
        """The head was read: commit at once."""
        self._commit(b"", monotonic())

    def head(self, head: ResponseHead) -> None:
        raise AssertionError("an answer has one head")

    def body(self, data: bytes) -> None:
        self.last_byte_s = monotonic()
        self._answer.write(data)

    def end(self) -> None:
        self._answer.finish()
        self._report(None)

    def lost(self, error: BackendError) -> None:
        self._report(StreamBroken(error.reason, error) if self.committed else error)

    @property
    def over(self) -> bool:
        """Whether the answer has said that it is whole, though its framing has not ended."""
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
        if self._head.status < 400:
            self._lease.first_token(now_s)
        self._answer.relay(self._head, self._head.length, body)


class JsonRelay(Relay):
    """Holds a JSON answer until it is whole, up to WHOLE_BYTES_MAX.

    `made` is told the id of the stored response that the answer is, if it is one.
    """

    __slots__ = ("_dialect", "_made", "_parts", "_size_bytes")

    def __init__(
        self,
        head: ResponseHead,
        answer: Answer,
        lease: Lease,
        ended: Ended,
        dialect: Dialect,
        made: Made,
    ) -> None:
        super().__init__(head, answer, lease, ended)
        self._dialect = dialect
        self._made = made
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def begin(self) -> None:
        pass

    def body(self, data: bytes) -> None:
        self.last_byte_s = monotonic()
        if self.committed:
            self._answer.write(data)
            return
        self._parts.append(data)
        self._size_bytes += len(data)
        if self._size_bytes > WHOLE_BYTES_MAX:
            self._commit(b"".join(self._parts), self.last_byte_s)
            self._parts.clear()

    def end(self) -> None:
        if not self.committed:
            body = b"".join(self._parts)
            if self._head.length is None and not self._head.chunked and not _is_json(body):
                self._report(AnswerCut())  # it was to last until the close, which came early
                return
            failure = self._failure(body)
            if failure is not None:
                self._report(failure)
                return
            self.usage = self._dialect.usage(body)
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
        super().end()

    def _failure(self, body: bytes) -> BackendError | None:
        """What a whole answer says of the backend rather than of the request."""
        if self._head.status == 500:
            return diagnosis(body)
        if self._head.status == 200 and self._dialect.aborted(body):
            return AnswerAborted()
        return None


def _is_json(body: bytes) -> bool:
    try:
        _any.decode(body)
    except UNREADABLE:
        return False
    return True


class EventRelay(Relay):
    """Relays server-sent events, always whole ones.

    Whole events, so that a hidden usage chunk never goes out in part and that
    a comment or an error can be put between any two writes. `made` is told the
    id of the stored response that the stream begins.
    """

    __slots__ = (
        "_dialect",
        "_ended_itself",
        "_failure",
        "_held",
        "_held_bytes",
        "_hide_usage",
        "_itl_s",
        "_made",
        "_ordinary",
        "_separator",
        "_tail",
    )

    def __init__(
        self,
        head: ResponseHead,
        answer: Answer,
        lease: Lease,
        ended: Ended,
        dialect: Dialect,
        itl_s: Histogram,
        made: Made,
        *,
        hide_usage: bool,
    ) -> None:
        super().__init__(head, answer, lease, ended)
        self._dialect = dialect
        self._itl_s = itl_s
        self._made = made
        self._hide_usage = hide_usage
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._tail = b""
        self._separator = b"\n\n"
        self._ordinary = _NOTHING_ORDINARY
        self._ended_itself = False
        self._failure: BackendError | None = None  # the backend itself says that it failed

    def begin(self) -> None:
        pass

    def body(self, data: bytes) -> None:
        now_s = monotonic()
        gap_s = now_s - self.last_byte_s
        self.last_byte_s = now_s
        if self._tail:
            data = self._tail + data
            self._tail = b""
        if not data.endswith(self._separator):
            data = self._whole_events(data)
            if not data:
                return
        if not self.committed:
            self._hold(data, now_s)
            return
        count = data.count(self._separator)
        if data.count(self._ordinary) != count:
            data, count = self._inspect(data, now_s)
        if count:
            self._itl_s.observe(gap_s / count, count)
            self._lease.tokens(count)
        if data:
            self._answer.write(data)
        failure = self._failure
        if failure is not None:
            aborted = isinstance(failure, AnswerAborted)
            self._report(StreamBroken("abort") if aborted else StreamBroken("error_event", failure))

    def end(self) -> None:
        if not self.committed:
            self._report(AnswerEmpty())
            return
        # A last event may lack its empty line; half of any other is not passed on.
        if self._tail and self._dialect.read(self._tail).sign is Sign.DONE:
            self._ended_itself = True
            self._answer.write(self._tail)
        if self._ended_itself or not self._dialect.has_end:
            super().end()
        else:
            self._report(StreamBroken("unfinished"))

    @property
    def over(self) -> bool:
        return self._ended_itself and not self._tail

    def lost(self, error: BackendError) -> None:
        if self.committed and self.over:
            super().end()  # its own end has come; only that of the framing is missing
        elif not self.committed and self._dialect.full_is_cut and isinstance(error, AnswerCut):
            self._report(AnswerDropped())
        else:
            super().lost(error)

    def _whole_events(self, data: bytes) -> bytes:
        """The part of `data` that ends with an event; the rest waits for more."""
        end = data.rfind(self._separator)
        if end < 0 and not self.committed and b"\r\n\r\n" in data:
            self._separator = b"\r\n\r\n"
            end = data.rfind(self._separator)
        if end >= 0:
            end += len(self._separator)
        elif len(data) > (EVENT_BYTES_MAX if self.committed else HELD_BYTES_MAX):
            end = len(data) - 3  # the separator may be cut across reads
        else:
            end = 0
        self._tail = data[end:]
        return data[:end]

    def _hold(self, data: bytes, now_s: float) -> None:
        """Keep what comes before the first token; commit with it or fail without."""
        rest = data
        while rest:
            event, separator, after = rest.partition(self._separator)
            event += separator
            read = self._dialect.read(event)
            sign = read.sign
            # A 4xx inside a 200 is the request's own fault: nobody else would take it.
            faulty = sign is Sign.ERROR and 400 <= read.status < 500
            if sign is Sign.TOKEN or faulty or self._held_bytes > HELD_BYTES_MAX:
                self._begin_stream(rest, now_s)
                return
            if sign is Sign.ERROR:
                self._report(_told(event, read.status))
                return
            if sign is Sign.ABORT:
                self._report(AnswerAborted())
                return
            if sign is Sign.DONE and read.usage and read.usage.completion_tokens:
                self._begin_stream(rest, now_s)  # its tokens were none to show
                return
            if sign is Sign.DONE:
                self._report(AnswerEmpty())
                return
            if read.response_id is not None:
                self._made(read.response_id)
            self._held.append(event)
            self._held_bytes += len(event)
            rest = after

    def _begin_stream(self, data: bytes, now_s: float) -> None:
        held = b"".join(self._held)
        self._held.clear()
        data, count = self._inspect(data, now_s)
        if self._failure is not None:  # in the same read: nothing was said yet
            self._report(self._failure)
            return
        self.committed = True
        self._lease.tokens(count)
        self._answer.relay(self._head, None, held + data)

    def _inspect(self, data: bytes, now_s: float) -> tuple[bytes, int]:
        """Read every event; return what the client is to see and the number of tokens."""
        kept: list[bytes] = []
        tokens = 0
        rest = data
        while rest:
            event, separator, rest = rest.partition(self._separator)
            event += separator
            read = self._dialect.read(event)
            self.usage = read.usage or self.usage
            if read.sign is Sign.TOKEN:
                tokens += 1
                if self._lease.prefilling:
                    self._lease.first_token(now_s, read.choice)
            elif read.sign is Sign.USAGE and self._hide_usage:
                continue
            elif read.sign is Sign.ERROR and read.status >= 500:
                self._failure = _told(event, read.status)
                break
            elif read.sign is Sign.DONE or read.sign is Sign.ERROR:
                self._ended_itself = True
            elif read.sign is Sign.ABORT:
                self._failure = AnswerAborted()
                break
            kept.append(event)
        if not self._lease.prefilling:
            self._ordinary = self._dialect.ordinary
        return b"".join(kept), tokens


def _told(event: bytes, status: int) -> BackendError:
    """What an error event of a stream says of the backend."""
    return diagnosis(event) or (BackendBusy() if status == 503 else BackendRefused())
