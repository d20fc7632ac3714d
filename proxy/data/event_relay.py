"""Relays server-sent events to a client.

Events are held until the first token. Until then a failure can be hidden from the client. After
it the usual read costs one clock read, three quick scans and one write. The relay awaits nothing
and parses only events that are not ordinary. It drops a `usage` chunk that the client did not ask
for.

Events stay whole so that no part of a hidden usage chunk goes out, and so that a comment or an
error can be put between any two writes. One that is too large passes in pieces.
"""

from math import inf
from typing import Final

import msgspec

from penstock.health.stall import hangs
from penstock.proxy.data.relay import BUSY, FREE_BYTES, OBJECT_BYTES, Passage, Relay, of_event
from penstock.proxy.dialects.dialect import TOKEN_BYTES, Event, Sign, Usage, usage_of
from penstock.proxy.errors.backend import (
    AnswerAborted,
    AnswerBare,
    AnswerCut,
    AnswerDropped,
    AnswerEmpty,
    AnswerMute,
    BackendError,
    BackendHung,
    BackendRefused,
    StreamBroken,
)
from penstock.proxy.telemetry.pool_metrics import Histogram
from penstock.proxy.wire.event_ends import (
    LF,
    PART_BYTES,
    after_first,
    after_last,
    has_data,
    ordinary_events,
    split,
)
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
# This many events may come before the first token.
HELD_EVENTS_MAX: Final = 4_096
# vLLM sends the first token with the event that opens a stream, in the same read or the next one.
# If none has come after this time, the model thinks unseen, or that event came before its prefill.
SHOWN_WITHIN_S: Final = 0.05
# What a stream may send later without an event: twice what a ping every second is in a day.
QUIET_BYTES_MAX: Final = 1_048_576
# Text whose estimate is up to this many times the number of its events has one token in each: the
# estimate is no better than that.
TEXT_OFF: Final = 1.25
# With it no event is ordinary.
_NOTHING_ORDINARY: Final = b""
_LOGPROB: Final = b'"logprob":'


class EventRelay(Relay):
    """Relays a stream. `itl_s` collects the times between its tokens.

    `bare_before`: another backend has answered without a token, so such an answer is final now.
    """

    def __init__(
        self,
        head: ResponseHead,
        passage: Passage,
        itl_s: Histogram,
        *,
        hide_usage: bool,
        bare_before: bool = False,
    ) -> None:
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
        self._itl_s = itl_s
        self._on_opened = passage.opened
        self._hide_usage = hide_usage
        self._bare_before = bare_before
        self._ordinary = _NOTHING_ORDINARY
        # With several choices one event may hold several of them, so its number says nothing.
        self._of_choices: dict[int, int] = {}  # the tokens of each, as events have counted them
        self._several = passage.lease.ask.prompts * passage.lease.ask.choices > 1
        # Events like the last one hold this, and differ from it by their text only.
        self._like = _NOTHING_ORDINARY
        self._framing_bytes = 0  # of such an event, beside its text
        self._opens = False  # something came that vLLM sends with the first token
        self._quiet_bytes = 0  # bytes in a row that had no meaning,
        self._quiet_after = 0  # and the number of tokens before them
        self._refused = False  # the stream says that the request failed
        self._refusal = 0  # the status of that error, if nothing came before it
        self._failure: BackendError | None = None  # the backend says that it failed itself
        self._seen, self._pinged_s = 0, 0.0  # tokens at the last look; the last ping
        self._told = b""  # by an event that the client may have

    def begin(self) -> None:
        pass

    def body(self, data: bytes) -> None:
        now_s = self._now()
        gap_s = now_s - self.last_byte_s
        self.last_byte_s = now_s
        count = 0 if self._midway else ordinary_events(data, self._ordinary)
        if not count:
            if self._midway or not data.endswith(LF):
                data = self._whole_events(data, now_s)
            if data:
                self._look(data, gap_s, now_s)
            return
        self._itl_s.observe(gap_s / count, count)
        self._lease.tokens(count)
        self._text_bytes += len(data) - count * self._framing_bytes
        self._answer.write(data)

    def end(self) -> None:
        tail = self._joined(self._tail)
        usage = self.usage
        if usage is not None and not usage.completion_tokens and not self._bare_before:
            ask = self._lease.ask  # the ends of its choices may look like tokens
            self.served = self._lease.generated_tokens > ask.prompts * ask.choices
        # The last event may lack its empty line. Half of any other event is not passed on.
        last = bool(tail) and self._large is None and self._dialect.read(tail).sign is Sign.DONE
        if not self.committed:
            if last:
                self._tail = b""
                self._hold(tail, self._now())
            if not self.committed:
                self._report(AnswerEmpty())
                return
        elif last or (tail and not tail.strip()):
            self._ended_itself = self._ended_itself or last
            self._answer.write(tail)
        if self._ended_itself or not self._dialect.has_end:
            super().end()
        else:
            self._report(StreamBroken("unfinished"))

    @property
    def over(self) -> bool:
        return self._ended_itself and not self._put_by and not self._tail.strip()

    @property
    def refused_midway(self) -> bool:
        return self._refused and self._lease.generated_tokens > 0

    @property
    def meant_status(self) -> int:
        return self._refusal or self.status

    @property
    def made_tokens(self) -> int:
        """One for each event of a token, unless their text or their own counts are more."""
        events, text = self._lease.generated_tokens, self._text_bytes // TOKEN_BYTES
        made = text if text > TEXT_OFF * events else events
        return max(made, sum(self._of_choices.values())) if self._several else made

    @property
    def counts(self) -> Usage | None:
        usage = self.usage
        if usage is None or self._ended_itself:
            return usage
        made_tokens = max(usage.completion_tokens, self.made_tokens)
        return Usage(usage.prompt_tokens, made_tokens, usage.cached_tokens)

    def lost(self, error: BackendError) -> None:
        if self.committed and self.over:
            super().end()  # the stream's own end has come, only that of the framing is missing
        elif not self.committed and self._dialect.full_is_cut and isinstance(error, AnswerCut):
            self._report(AnswerDropped())
        else:
            super().lost(error)

    @property
    def quiet_since_s(self) -> float:
        """Since when its client was sent nothing."""
        return max(self.last_byte_s, self._pinged_s)

    def look(self, hold_s: float, now_s: float) -> None:
        """End it if its backend hangs. Send a comment if nothing was sent for `hold_s`."""
        seen, self._seen = self._seen, self._lease.generated_tokens
        if self._seen == seen and hangs(self._lease.backend) and not self.over:
            self._report(StreamBroken("hung", BackendHung()))
        elif now_s - self.quiet_since_s >= hold_s:
            self._pinged_s = now_s
            if self._large is None and not self._ended_itself:
                self._answer.hold()

    def pass_on(self) -> None:
        self._commit_with(b"")
        self._answer.finish()

    # What events mean -------------------------------------------------------------------------

    def _hold(self, data: bytes, now_s: float) -> None:
        events = split(data)
        for number, event in enumerate(events):
            read = self._dialect.read(event)
            sign = read.sign
            self._opens = self._opens or read.opens
            # A 4xx inside a 200 is the request's own fault: other backends would refuse it too.
            faulty = sign is Sign.ERROR and 400 <= read.status < 500 and read.status not in BUSY
            if sign is Sign.ERROR and not faulty:
                self._report(of_event(event, read.status))
                return
            if sign is Sign.ABORT:
                self._report(AnswerAborted())
                return
            self._note(read)
            if sign is Sign.DONE and not self._answers(read.whole):
                self._held.append(event)
                self._report(AnswerBare() if self._tells_all else AnswerEmpty())
                return
            if sign in (Sign.TOKEN, Sign.DONE) or faulty or self._held_bytes > HELD_BYTES_MAX:
                self._begin_stream(b"".join(events[number:]), now_s)
                return
            if read.response_id is not None:
                self.response_id = read.response_id
                self._made(read.response_id)
            if sign is not Sign.USAGE or not self._hide_usage:
                self._held.append(event)
                self._held_bytes += len(event)
                if len(self._held) > HELD_EVENTS_MAX:
                    self._report(AnswerMute())
                    return
                if not self._may_hold():
                    self._begin_stream(b"".join(events[number + 1 :]), now_s)
                    return

    def _note(self, read: Event) -> None:
        """Note the token counts. Beside one of several choices they are of that choice only."""
        if read.usage is not None:
            if read.sign is Sign.USAGE or not self._several:
                self.usage = read.usage
            else:
                self._of_choices[read.choice] = read.usage.completion_tokens

    def _open(self, now_s: float) -> None:
        """The stream has begun: its prompt leaves the queue, unless a token follows soon."""
        lease = self._lease
        if lease.queued_work and not lease.ended and self.answering_s == inf:
            self.answering_s = now_s + SHOWN_WITHIN_S
            self._on_opened(now_s)

    def _answers(self, whole: bool) -> bool:
        """Whether an end without a token is a valid answer."""
        generated = self.usage is not None and self.usage.completion_tokens > 0  # but not shown
        return whole or generated or (self._bare_before and self._tells_all)

    @property
    def _tells_all(self) -> bool:
        return self.usage is not None or self._dialect.end_tells

    def _begin_stream(self, data: bytes, now_s: float) -> None:
        data, count = self._inspect(data, now_s)
        if self._failure is not None:  # in the same read: nothing was sent yet
            self._report(self._failure)
            return
        self._lease.tokens(count)
        self._commit_with(data)

    def _look(self, data: bytes, gap_s: float, now_s: float) -> None:
        if not self.committed:
            self._hold(data, now_s)
            if self._opens and not self.committed:
                self._open(now_s)
            return
        data, count = self._inspect(data, now_s)
        if count:
            self._itl_s.observe(gap_s / count, count)
            self._lease.tokens(count)
        if data:
            self._answer.write(data)
        failure = self._failure
        if failure is not None:
            aborted = isinstance(failure, AnswerAborted)
            broken = StreamBroken("error_event", failure, self._told)
            self._report(StreamBroken("abort") if aborted else broken)
        elif self._quiet_bytes > QUIET_BYTES_MAX:
            if self.over:
                self.end()
            else:
                self._report(StreamBroken("no_events"))

    def _count_quiet(self, size_bytes: int) -> None:
        """Count bytes that have no meaning, since the last token."""
        tokens = self._lease.generated_tokens
        if tokens != self._quiet_after:
            self._quiet_after = tokens
            self._quiet_bytes = 0
        self._quiet_bytes += size_bytes

    def _inspect(self, data: bytes, now_s: float) -> tuple[bytes, int]:
        """Read every event. Returns what the client may see and the number of tokens."""
        lease = self._lease
        events = split(data)
        if self._all_ordinary(data, len(events)):
            self._text_bytes += len(data) - len(events) * self._framing_bytes
            return data, len(events)
        kept: list[bytes] = []
        tokens = 0
        quiet = True
        for event in events:
            read = self._dialect.read(event)
            self._note(read)
            quiet = quiet and read.sign is Sign.QUIET
            self._like = _NOTHING_ORDINARY
            if read.sign is Sign.TOKEN:
                tokens += 1
                self._measure(event)
                if read.usage is not None:  # the next one counts for itself
                    self._like = _NOTHING_ORDINARY
                if lease.prefilling:
                    self._begun(read, event, now_s)
            elif read.sign is Sign.USAGE and self._hide_usage:
                continue
            elif read.sign is Sign.ERROR and read.status >= 500:
                self._failure = of_event(event, read.status)
                self._told = event if read.whole else b""
                break
            elif read.sign is Sign.DONE or read.sign is Sign.ERROR:
                self._ends(read, kept)
            elif read.sign is Sign.ABORT:
                self._failure = AnswerAborted()
                break
            kept.append(event)
        self._count_quiet(0 if kept and not quiet else len(data))
        ordinary = not lease.prefilling and not self._several
        self._ordinary = self._like if ordinary else _NOTHING_ORDINARY
        return b"".join(kept), tokens

    def _measure(self, event: bytes) -> None:
        """Count an event's text, and note which events have the same framing around it.

        Those with log probabilities differ by more, so each of them is read.
        """
        dialect = self._dialect
        text_bytes, end = dialect.text(event)
        self._text_bytes += text_bytes
        self._framing_bytes = len(event) - text_bytes
        if end and dialect.ordinary and event.find(_LOGPROB) < 0:
            if event.find(dialect.ordinary, end) >= 0:
                self._like = event[end:]
            elif event.find(dialect.ordinary) >= 0:
                self._like = dialect.ordinary

    def _ends(self, read: Event, before: list[bytes]) -> None:
        """The stream says that it is over. `before`: what else came in the same read."""
        self._ended_itself, self.goes_on = True, False
        if read.sign is Sign.ERROR:
            self._refused, self.served = True, False
            if not self.committed and not any(map(has_data, self._held + before)):
                self._refusal = read.status

    def _all_ordinary(self, data: bytes, count: int) -> bool:
        """Whether a read has only ordinary events, with any line ends."""
        if self._lease.prefilling or data.count(self._like) != count:
            return False
        # An event with several choices could make up for an event that is not ordinary.
        return not (self._several and b"},{" in data)

    def _begun(self, read: Event, event: bytes, now_s: float) -> None:
        dialect = self._dialect
        if event.find(dialect.ordinary) < 0 and dialect.says_nothing(event):
            self._lease.held_up = True  # an end at once: its time says nothing about the backend
        for choice in (read.choice, *read.choices):
            self._lease.first_token(now_s, choice)
        if read.usage is not None:
            # Nobody asks for usage beside a token. A server that sends it anyway
            # (vLLM's --enable-force-include-usage) would send the last chunk as well.
            self._hide_usage = False

    # Where events end -------------------------------------------------------------------------

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
