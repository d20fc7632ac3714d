"""Holds a JSON answer until it is whole. One that is too large to hold passes on as it comes.

What it means is read in it when it is whole. Of a large one only its token counts are found.
"""

from typing import Final

import msgspec

from penstock.balancing.outline import Steps
from penstock.proxy.data.relay import FREE_BYTES, OBJECT_BYTES, Passage, Relay, diagnosis
from penstock.proxy.dialects.dialect import (
    SMALL_BYTES,
    TOKEN_BYTES,
    UNREADABLE,
    Usage,
    reading_whole,
    text_of,
    whole_of,
)
from penstock.proxy.dialects.members import Whole
from penstock.proxy.errors.backend import (
    AnswerAborted,
    AnswerCut,
    BackendError,
    ErrorTooLarge,
    InternalFault,
)
from penstock.proxy.wire.heads import ResponseHead
from penstock.proxy.wire.json_object import JsonEnd, JsonObject

# JSON answers up to this size are held whole, so that a cut one can be tried elsewhere.
WHOLE_BYTES_MAX: Final = 1_048_576
_any: Final = msgspec.json.Decoder(msgspec.Raw)


def _no_turns(steps: Steps[None]) -> None:
    """Takes the place of a relay's turns after it has reported."""


class JsonRelay(Relay):
    """Holds a JSON answer, or a 500, until it is whole, up to WHOLE_BYTES_MAX.

    `reports_500`: one of up to FREE_BYTES is reported as a failure, and kept.
    """

    def __init__(self, head: ResponseHead, passage: Passage, *, reports_500: bool = False) -> None:
        super().__init__(head, passage)
        self._reports_500 = reports_500
        self._dialect = passage.dialect
        self._made = passage.made
        self._in_turns = passage.in_turns
        self._source = passage.source
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._counts: JsonObject | None = None  # of an answer that is too large to hold
        self._text_bytes = 0  # of one without usage
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
            if self._counts is not None:
                self._counts.feed(data)
                # As much of it is text as of what came before.
                self._text_bytes += len(data) * self._text_bytes // self._size_bytes
                self._size_bytes += len(data)
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

    @property
    def made_tokens(self) -> int:
        return self._text_bytes // TOKEN_BYTES

    @property
    def counts(self) -> Usage | None:
        if self.usage is not None or self._counts is None:
            return self.usage
        whole = whole_of(b'{"%b":%b}' % (self._dialect.counts_in, self._counts.text))
        return self._dialect.usage(whole) if whole is not None else None

    @property
    def is_over(self) -> bool:
        status_read = self.usage is not None or self._counts is None
        return bool(self.response_id) and not self.goes_on and status_read

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
        self._counts = JsonObject(self._dialect.counts_in, 1)
        self._counts.feed(body)
        if self._lease.ask.generates:
            self._text_bytes = text_of(body)[0]
        self._commit(body, self.last_byte_s)

    def end(self) -> None:
        cut = self._end is not None and not self._end.reached
        if cut:
            self.lost(AnswerCut())
        elif self.committed:
            self.usage = self.counts
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
        if self._end is not None and whole is None and not _is_json(body):
            self._report(AnswerCut())
            return
        failure = self._failure(body, whole)
        if failure is not None:
            self._parts.append(body)
            self._report(failure)
            return
        self._learn(whole)
        if self.usage is None and self._lease.ask.generates:
            self._text_bytes = text_of(body)[0]
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


def _is_json(body: bytes) -> bool:
    """Whether it is any small JSON value."""
    if len(body) > SMALL_BYTES:
        return False
    try:
        _any.decode(body)
    except UNREADABLE:
        return False
    return True
