"""Server-sent events on their way to a client: always whole ones.

They are held until the first token; until then a failure is ours to hide. From then on the
relay costs one count, one comparison, one clock read and one write a chunk; it awaits nothing
and parses only what is out of the ordinary.

Whole events, so that a hidden usage chunk never goes out in part and that a comment or an
error can be put between any two writes.
"""

from time import monotonic
from typing import Final

from balancing.lease import Lease
from proxy.answer import Answer
from proxy.diagnosis import diagnosis
from proxy.dialects import Dialect
from proxy.dialects.dialect import Event, Sign
from proxy.errors import (
    AnswerAborted,
    AnswerBare,
    AnswerCut,
    AnswerDropped,
    AnswerEmpty,
    AnswerMute,
    BackendBusy,
    BackendError,
    BackendRefused,
    InternalFault,
    StreamBroken,
)
from proxy.event_ends import CR, LF, PART_BYTES, after_first, after_last, split
from proxy.heads import ResponseHead
from proxy.metrics import Histogram
from proxy.relay import Begun, Ended, Made, Relay

# What a stream may send before its first token (a responses preamble repeats the request).
HELD_BYTES_MAX: Final = 1_048_576
HELD_EVENTS_MAX: Final = 4_096
# What it may send after that without any event: a ping every second of a day is half of it.
QUIET_BYTES_MAX: Final = 1_048_576
# An event larger than this passes in pieces, known by its beginning. The last one of a responses
# stream repeats what its preamble did, and holds the output.
EVENT_BYTES_MAX: Final = 2_097_152
# Of such an event; its name is a line of its own, an id is the first of its members.
BEGINNING_BYTES: Final = 4_096

_NOTHING_ORDINARY: Final = b""  # more of it than of events: every read is looked at


def may_be_bare(body: bytes) -> bool:
    """Whether a request may have an answer without a token: a beam search.

    Quotes inside JSON text are escaped, so no prompt looks like it.
    """
    return body.find(b'"use_beam_search"') >= 0


class EventRelay(Relay):
    """Relays a stream. `made` is told the id of the stored response that it begins.

    `bare_before`: another backend has answered without a token, so that this is the answer.
    """

    __slots__ = (
        "_bare_before",
        "_dialect",
        "_ended_itself",
        "_failure",
        "_held",
        "_held_bytes",
        "_hide_usage",
        "_itl_s",
        "_large",
        "_made",
        "_midway",
        "_ordinary",
        "_quiet_after",
        "_quiet_bytes",
        "_refused",
        "_several",
        "_tail",
    )

    def __init__(
        self,
        head: ResponseHead,
        answer: Answer,
        lease: Lease,
        ended: Ended,
        begun: Begun,
        dialect: Dialect,
        itl_s: Histogram,
        made: Made,
        *,
        hide_usage: bool,
        bare_before: bool = False,
    ) -> None:
        super().__init__(head, answer, lease, ended, begun)
        self._dialect = dialect
        self._itl_s = itl_s
        self._made = made
        self._hide_usage = hide_usage
        self._bare_before = bare_before
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._tail = b""
        self._midway = False  # in an event: its end is searched for
        self._ordinary = _NOTHING_ORDINARY
        # An event may hold a choice each: their number tells nothing then.
        self._several = lease.ask.prompts * lease.ask.choices > 1
        self._quiet_bytes = 0  # that came one after another and mean nothing,
        self._quiet_after = 0  # since there were so many tokens
        self._large: Sign | None = None  # of the event that passes in pieces
        self._ended_itself = False
        self._refused = False  # it says that the request failed
        self._failure: BackendError | None = None  # the backend itself says that it failed

    def begin(self) -> None:
        pass

    def body(self, data: bytes) -> None:
        now_s = monotonic()
        gap_s = now_s - self.last_byte_s
        self.last_byte_s = now_s
        if self._midway or not data.endswith(LF):
            data = self._whole_events(data, now_s)
            if data:
                self._look(data, gap_s, now_s)
            return
        count = data.count(LF)
        if data.count(self._ordinary) != count or CR in data:
            self._look(data, gap_s, now_s)
            return
        self._itl_s.observe(gap_s / count, count)
        self._lease.tokens(count)
        self._answer.write(data)

    def end(self) -> None:
        tail = self._tail
        usage = self.usage
        if usage is not None and not usage.completion_tokens and not self._bare_before:
            ask = self._lease.ask  # its ends may look like tokens
            self.served = self._lease.generated_tokens > ask.prompts * ask.choices
        # A last event may lack its empty line; half of any other is not passed on.
        last = self._large is None and self._dialect.read(tail).sign is Sign.DONE
        if not self.committed:
            if last:
                self._tail = b""
                self._hold(tail, monotonic())
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
        return self._ended_itself and not self._tail.strip()

    @property
    def refused_midway(self) -> bool:
        return self._refused and self._lease.generated_tokens > 0

    def lost(self, error: BackendError) -> None:
        if self.committed and self.over:
            super().end()  # its own end has come; only that of the framing is missing
        elif not self.committed and self._dialect.full_is_cut and isinstance(error, AnswerCut):
            self._report(AnswerDropped())
        else:
            super().lost(error)

    def pass_bare(self) -> None:
        """No backend answered with a token: what this one said is the answer."""
        self._commit_with(b"")
        self._answer.finish()

    # Where events end ---------------------------------------------------------------------

    def _whole_events(self, data: bytes, now_s: float) -> bytes:
        """What has come up to the last end of an event; the rest waits for more."""
        tail = self._tail
        if tail:
            data = tail + data
        searched_bytes = len(tail)
        if self._large is not None:
            searched_bytes = 0
            data = self._rest_of_large(data)
            if not data:
                return b""
        end = after_last(data, max(0, searched_bytes - PART_BYTES))
        if not end and len(data) > (EVENT_BYTES_MAX if self.committed else HELD_BYTES_MAX):
            self._begin_large(data, now_s)
            return b""
        self._tail = data[end:]
        data = data[:end]
        self._midway = bool(self._tail)
        return data

    def _begin_large(self, data: bytes, now_s: float) -> None:
        """Pass on an event that is too large to hold; what it means its beginning tells."""
        beginning = data[:BEGINNING_BYTES]
        read = self._dialect.read_beginning(beginning)
        if read.sign is Sign.ERROR:
            failure = _told(beginning, read.status)
            self._report(StreamBroken("error_event", failure) if self.committed else failure)
            return
        if read.response_id is not None:
            self._made(read.response_id)
        if read.sign is Sign.TOKEN and self._lease.prefilling:
            self._lease.first_token(now_s)
        self._large = read.sign
        self._midway = True
        self._tail = data[-PART_BYTES:]
        self._pass_part(data[:-PART_BYTES])

    def _rest_of_large(self, data: bytes) -> bytes:
        """Pass on more of a large event; what comes after its end is returned."""
        end = after_first(data)
        if not end:
            self._tail = data[-PART_BYTES:]
            self._pass_part(data[:-PART_BYTES])
            return b""
        self._ended_itself = self._ended_itself or self._large is Sign.DONE
        self._lease.tokens(self._large is Sign.TOKEN)
        self._large = None
        self._tail = b""
        self._midway = False
        self._pass_part(data[:end])
        return data[end:]

    def _pass_part(self, part: bytes) -> None:
        if self.committed:
            self._answer.write(part)
        else:
            self._commit_with(part)

    # What events mean -------------------------------------------------------------------------

    def _hold(self, data: bytes, now_s: float) -> None:
        """Keep what comes before the first token; commit with it or fail without."""
        events = split(data)
        for number, event in enumerate(events):
            read = self._dialect.read(event)
            sign = read.sign
            # A 4xx inside a 200 is the request's own fault: nobody else would take it.
            faulty = sign is Sign.ERROR and 400 <= read.status < 500
            if sign is Sign.ERROR and not faulty:
                self._report(_told(event, read.status))
                return
            if sign is Sign.ABORT:
                self._report(AnswerAborted())
                return
            self.usage = read.usage or self.usage
            if sign is Sign.DONE and not self._answers(read.whole):
                self._held.append(event)
                self._report(AnswerBare() if self._tells_all else AnswerEmpty())
                return
            if sign in (Sign.TOKEN, Sign.DONE) or faulty or self._held_bytes > HELD_BYTES_MAX:
                self._begin_stream(b"".join(events[number:]), now_s)
                return
            if read.response_id is not None:
                self._made(read.response_id)
            if sign is not Sign.USAGE or not self._hide_usage:
                self._held.append(event)
                self._held_bytes += len(event)
                if len(self._held) > HELD_EVENTS_MAX:
                    self._report(AnswerMute())
                    return

    def _answers(self, whole: bool) -> bool:
        """Whether an end before any token is an answer all the same."""
        generated = self.usage is not None and self.usage.completion_tokens > 0  # none to show
        return whole or generated or (self._bare_before and self._tells_all)

    @property
    def _tells_all(self) -> bool:
        """Whether at its end a stream has told how many tokens there were."""
        return self.usage is not None or self._dialect.end_tells

    def _begin_stream(self, data: bytes, now_s: float) -> None:
        data, count = self._inspect(data, now_s)
        if self._failure is not None:  # in the same read: nothing was said yet
            self._report(self._failure)
            return
        self._lease.tokens(count)
        self._commit_with(data)

    def _commit_with(self, data: bytes) -> None:
        held = b"".join(self._held)
        self._held.clear()
        self.committed = True
        self._on_begun()
        self._answer.relay(self._head, None, held + data)

    def _look(self, data: bytes, gap_s: float, now_s: float) -> None:
        """Pass on a read that may hold more than ordinary events."""
        if not self.committed:
            self._hold(data, now_s)
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
            self._report(StreamBroken("abort") if aborted else StreamBroken("error_event", failure))
        elif self._quiet_bytes > QUIET_BYTES_MAX:
            if self.over:
                self.end()
            else:
                self._report(StreamBroken("no_events"))

    def _count_quiet(self, size_bytes: int) -> None:
        """So much came that means nothing."""
        tokens = self._lease.generated_tokens
        if tokens != self._quiet_after:
            self._quiet_after = tokens
            self._quiet_bytes = 0
        self._quiet_bytes += size_bytes

    def _inspect(self, data: bytes, now_s: float) -> tuple[bytes, int]:
        """Read every event; return what the client is to see and the number of tokens."""
        lease = self._lease
        events = split(data)
        if self._all_ordinary(data, len(events)):
            return data, len(events)
        kept: list[bytes] = []
        tokens = 0
        quiet = True
        for event in events:
            read = self._dialect.read(event)
            self.usage = read.usage or self.usage
            quiet = quiet and read.sign is Sign.QUIET
            if read.sign is Sign.TOKEN:
                tokens += 1
                if lease.prefilling:
                    self._begun(read, event, now_s)
            elif read.sign is Sign.USAGE and self._hide_usage:
                continue
            elif read.sign is Sign.ERROR and read.status >= 500:
                self._failure = _told(event, read.status)
                break
            elif read.sign is Sign.DONE or read.sign is Sign.ERROR:
                self._ended_itself = True
                self._refused = self._refused or read.sign is Sign.ERROR
                self.served = self.served and read.sign is Sign.DONE
            elif read.sign is Sign.ABORT:
                self._failure = AnswerAborted()
                break
            kept.append(event)
        self._count_quiet(len(data) if quiet else 0)
        if not lease.prefilling and not self._several:
            self._ordinary = self._dialect.ordinary
        return b"".join(kept), tokens

    def _all_ordinary(self, data: bytes, count: int) -> bool:
        """Whether a read has nothing but ordinary events, whatever ends them."""
        if self._lease.prefilling or data.count(self._dialect.ordinary) != count:
            return False
        # An event of several choices could make up for one that is not ordinary.
        return not (self._several and b"},{" in data)

    def _begun(self, read: Event, event: bytes, now_s: float) -> None:
        """The first token of a choice, or of all that the event holds."""
        dialect = self._dialect
        if event.find(dialect.ordinary) < 0 and dialect.says_nothing(event):
            self._lease.held_up()  # an end: how soon it came says nothing of the backend
        for choice in (read.choice, *read.choices):
            self._lease.first_token(now_s, choice)
        if read.usage is not None:
            # Nobody asks for usage beside a token: a server that gives it by itself
            # (vLLM's --enable-force-include-usage) gives the last chunk so too.
            self._hide_usage = False


def _told(event: bytes, status: int) -> BackendError:
    """What an error event of a stream says of the backend."""
    said = diagnosis(event)
    if said is not None:
        return said
    if status == 503:
        return BackendBusy()
    return InternalFault() if status == 500 else BackendRefused()
