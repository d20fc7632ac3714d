"""Puts the bytes of a stream together to whole events. One that is too large passes in pieces.

Events stay whole so that no part of a hidden usage chunk goes out, and so that a comment or an
error can be put between any two writes.
"""

from typing import Final

import msgspec

from penstock.proxy.data.relay import FREE_BYTES, OBJECT_BYTES, Passage, Relay, of_event
from penstock.proxy.dialects.dialect import Sign, usage_of
from penstock.proxy.errors.backend import AnswerMute, BackendRefused, StreamBroken
from penstock.proxy.wire.event_ends import PART_BYTES, after_first, after_last, has_data
from penstock.proxy.wire.heads import ResponseHead
from penstock.proxy.wire.json_object import JsonObject

# What a stream may send before its first token. (A responses preamble repeats the request.)
HELD_BYTES_MAX: Final = 1_048_576
# After the first token an event larger than PIECES_BYTES passes in pieces, and its beginning tells
# what it is. The last event and errors do so only above EVENT_BYTES_MAX, because the rest of them
# matters too.
PIECES_BYTES: Final = 65_536
EVENT_BYTES_MAX: Final = 2_097_152
# The beginning of an event in pieces. It has the event's name, and the id as the first member.
BEGINNING_BYTES: Final = 4_096


class WholeEvents(Relay):
    """A stream of events before they are read. `EventRelay` reads them."""

    def __init__(self, head: ResponseHead, passage: Passage) -> None:
        super().__init__(head, passage)
        self._dialect = passage.dialect
        self._made = passage.made
        self._source = passage.source
        self._held: list[bytes] = []  # whole events that came before the first token
        self._held_bytes = 0
        self._put_by: list[bytes] = []  # the unfinished event, without any end of an event
        self._put_by_bytes = 0
        self._tail = b""  # what follows `_put_by`
        self._midway = False  # inside an event: its end is searched for
        self._keeps = False  # inside a large event that is held until its end
        self._text_bytes = 0  # of the tokens' text that came
        self._large: Sign | None = None  # the sign of the event that passes in pieces
        self._counts: JsonObject | None = None  # of that event, if it is the last
        self._ended_itself = False

    def _whole_events(self, data: bytes, now_s: float) -> bytes:
        """All bytes up to the last end of an event. The rest is kept until more comes."""
        searched_bytes = len(self._tail)
        if searched_bytes:
            data = self._tail + data
        if self._large is not None:
            searched_bytes = 0
            data = self._rest_of_large(data)
            if not data:
                return b""
        end = after_last(data, max(0, searched_bytes - PART_BYTES))
        self._tail = data[end:]
        self._midway = bool(self._tail)
        if end:
            return self._joined(data[:end]) if self._put_by else data[:end]
        if len(data) > FREE_BYTES and not self._puts_by():
            self._begin_large(self._joined(self._tail), now_s)
        return b""

    def _puts_by(self) -> bool:
        """Put an unfinished event aside, so that it is not copied again. False when too large."""
        data = self._tail
        self._tail = data[-PART_BYTES:]
        self._put_by.append(data[:-PART_BYTES])
        before_bytes = self._put_by_bytes
        size_bytes = self._put_by_bytes = before_bytes + len(data) - PART_BYTES
        self._source.dear = size_bytes > PIECES_BYTES  # its end takes up to 10 ms
        if not self.committed:
            return size_bytes <= HELD_BYTES_MAX and self._may_hold()
        if before_bytes <= PIECES_BYTES < size_bytes:
            self._keeps = self._tells_more(b"".join(self._put_by))
        most_bytes = EVENT_BYTES_MAX if self._keeps else PIECES_BYTES
        return size_bytes <= most_bytes and self._may_hold()

    def _may_hold(self) -> bool:
        """Whether the bytes held now, in whole events and in an unfinished one, are allowed."""
        events_bytes = self._held_bytes + OBJECT_BYTES * len(self._held)
        size_bytes = events_bytes + self._put_by_bytes
        if size_bytes <= FREE_BYTES:
            return True
        return self._lease.keep(size_bytes + self._source.behind_bytes)

    def _tells_more(self, beginning: bytes) -> bool:
        """Whether all of a large event is needed: a last event has the usage, an error its reason.

        An event without data so far may become either.
        """
        sign = self._dialect.read_beginning(beginning[:BEGINNING_BYTES]).sign
        return sign is Sign.DONE or sign is Sign.ERROR or not has_data(beginning)

    def _joined(self, data: bytes) -> bytes:
        if not self._put_by:
            return data
        self._put_by.append(data)
        data = b"".join(self._put_by)
        self._put_by.clear()
        self._put_by_bytes = 0
        self._source.dear = False
        self._lease.keep(self._held_bytes)
        return data

    def _begin_large(self, data: bytes, now_s: float) -> None:
        """Begin to pass on an event that is too large to hold. Its beginning tells what it is.

        An event without data so far consists of comments: more than may come without an event.
        """
        if not has_data(data):
            if self._ended_itself:
                self.end()
            else:
                self._report(StreamBroken("no_events") if self.committed else AnswerMute())
            return
        beginning = data[:BEGINNING_BYTES]
        read = self._dialect.read_beginning(beginning)
        failure = of_event(beginning, read.status) if read.sign is Sign.ERROR else None
        if failure is not None and (read.status or not isinstance(failure, BackendRefused)):
            self._report(StreamBroken("error_event", failure) if self.committed else failure)
            return
        if failure is not None:  # it may be the request's own: passed on, and nobody's fault
            self.served = self.goes_on = False
        if read.response_id is not None:
            self._made(read.response_id)
        if read.sign is Sign.TOKEN and self._lease.prefilling:
            self._lease.first_token(now_s)
        self._large = read.sign
        if read.sign is Sign.DONE:  # its member `response` has the usage
            self._counts = JsonObject(self._dialect.counts_in, 2)
        self._midway = True
        self._tail = data[-PART_BYTES:]
        self._pass_part(data[:-PART_BYTES])

    def _rest_of_large(self, data: bytes) -> bytes:
        """Pass on more of a large event. Returns what follows its end."""
        end = after_first(data)
        if not end:
            self._tail = data[-PART_BYTES:]
            self._pass_part(data[:-PART_BYTES])
            return b""
        self._ended_itself = self._ended_itself or self._large in (Sign.DONE, Sign.ERROR)
        self._lease.tokens(self._large is Sign.TOKEN)
        self._large = None
        self._tail = b""
        self._midway = False
        self._pass_part(data[:end])
        if self._counts is not None:
            self.usage = usage_of(msgspec.Raw(self._counts.text)) or self.usage
            self._counts = None
        return data[end:]

    def _pass_part(self, part: bytes) -> None:
        if self._large is Sign.TOKEN:
            self._text_bytes += len(part)
        if self._counts is not None:
            self._counts.feed(part)
        if self.committed:
            self._answer.write(part)
        else:
            self._commit_with(part)

    def _commit_with(self, data: bytes) -> None:
        held = b"".join(self._held)
        self._held.clear()
        if self._held_bytes:
            self._held_bytes = 0
            self._lease.keep(0)
        self.committed = True
        self._on_begun()
        self._answer.relay(self._head, None, held + data)
