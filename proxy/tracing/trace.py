"""What one request has to do with its trace while it runs, and which requests are traced.

The caller's decision counts, so that a trace is whole. Without a caller's, a share of the traces is
taken, by the lowest bits of their ids: whoever else decides by them decides alike. A client may
have a request traced by the sampled flag. But that is limited to a share of its own requests and,
for all clients together, to a number in a minute. Of that number nobody gets more than is left for
the others.

Reads and writes W3C trace context: which trace a request belongs to, and who called. Pure.

By https://www.w3.org/TR/trace-context: a `traceparent` that is malformed or comes twice counts as
none, and then `tracestate` means nothing. Of a version that is not known the first 55 characters
count. What is written is version 00, with the sampled flag alone.
"""

import re
from collections.abc import Callable
from math import ceil, floor
from random import Random
from typing import Final, NamedTuple

from penstock.conf.tracing import TracingSettings
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.telemetry.record import Try
from penstock.proxy.tracing.span import Finished
from penstock.proxy.wire.header_fields import Headers

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
NAME_BYTES: Final = 11  # of traceparent
PARENT_BYTES: Final = 55
# Maps hexadecimal digits in lower case to x and a dash to itself, and what a parent is then.
_SHAPE: Final = bytes(
    ord("x") if byte in b"0123456789abcdef" else 45 * (byte == 45) for byte in range(256)
)
_SHAPED: Final = b"xx-%b-%b-xx" % (b"x" * 32, b"x" * 16)
_NO_TRACE: Final = b"0" * 32
_NO_SPAN: Final = b"0" * 16
_KNOWN: Final = b"00"
_INVALID: Final = b"ff"
DASH: Final = 45
# A key, or a key of a vendor's tenant, and a value that does not end in a blank.
_MEMBER: Final = re.compile(
    rb"(?:[a-z0-9][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    rb"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
MEMBERS_MAX: Final = 32
# No valid list is longer or has more commas, but for some empty members. A longer one is not read:
# a head full of commas would take milliseconds.
READ_BYTES_MAX: Final = 16_640
COMMAS_MAX: Final = 2 * MEMBERS_MAX
# As many must be passed on. A longer list loses its long members first, then its last ones.
STATE_BYTES_MAX: Final = 512
LONG_MEMBER_BYTES: Final = 128


class Context(NamedTuple):
    """Where a request stands in a trace. Ids are in hexadecimal. `state`: what other vendors have
    noted, empty if none."""

    trace_id: bytes
    parent_id: bytes
    sampled: bool
    state: bytes


def trace_id_of(headers: Headers) -> str:
    """The id of the trace that the request belongs to. Empty: of none."""
    given: bytes | None = None
    for field in headers:
        name = field[0]
        # Every request comes here, most without one. Comparing lengths first saves a sixth of it.
        if len(name) == NAME_BYTES and name == TRACEPARENT:
            if given is not None:
                return ""
            given = field[1]
    if given is None:
        return ""
    parts = _parts(given)
    return parts[0].decode("ascii") if parts is not None else ""


def context_of(headers: Headers) -> tuple[Context | None, bool]:
    """Where the request stands in its client's trace, and whether it has any such header.

    None: it begins a trace.
    """
    parents: list[bytes] = []
    states: list[bytes] = []
    for field in headers:
        if field[0] == TRACEPARENT:
            parents.append(field[1])
        elif field[0] == TRACESTATE:
            states.append(field[1])
    parts = _parts(parents[0]) if len(parents) == 1 else None
    if parts is None:
        return None, bool(parents or states)
    state = state_of(b",".join(states)) if states else b""
    return Context(parts[0], parts[1], parts[2], state), True


def without_context(headers: Headers) -> Headers:
    """The other headers."""
    return [field for field in headers if field[0] != TRACEPARENT and field[0] != TRACESTATE]


def context_headers(trace_id: bytes, span_id: bytes, sampled: bool, state: bytes) -> Headers:
    """The headers for whoever is called by this span."""
    flags = b"01" if sampled else b"00"
    parent = (TRACEPARENT, b"-".join([_KNOWN, trace_id, span_id, flags]))
    return [parent, (TRACESTATE, state)] if state else [parent]


def state_of(value: bytes) -> bytes:
    """A `tracestate` as it may be sent on. Empty if it is malformed."""
    if len(value) > READ_BYTES_MAX or value.count(b",") > COMMAS_MAX:
        return b""
    members = [member for each in value.split(b",") if (member := each.strip(b" \t"))]
    if len(members) > MEMBERS_MAX:
        return b""
    for member in members:
        if _MEMBER.fullmatch(member) is None:
            return b""
    state = b",".join(members)
    if len(state) <= STATE_BYTES_MAX:
        return state
    members = [member for member in members if len(member) <= LONG_MEMBER_BYTES]
    while len(state := b",".join(members)) > STATE_BYTES_MAX:
        members.pop()
    return state


def _parts(value: bytes) -> tuple[bytes, bytes, bool] | None:
    """The trace's id, the caller's span id, and whether it is sampled. None if malformed."""
    # Without a pattern, which costs more: every request with a parent comes here.
    known = value if len(value) == PARENT_BYTES else value[:PARENT_BYTES]
    if known.translate(_SHAPE) != _SHAPED:
        return None
    version, trace_id, parent_id = known[:2], known[3:35], known[36:52]
    if version == _INVALID or trace_id == _NO_TRACE or parent_id == _NO_SPAN:
        return None
    if len(value) > PARENT_BYTES and (version == _KNOWN or value[PARENT_BYTES] != DASH):
        return None
    digit = known[54]
    # The lowest bit of the last hexadecimal digit. That of its ASCII code is the same for 0 to 9,
    # and the opposite for a to f: a is 0x61, and stands for 10.
    return trace_id, parent_id, bool((digit ^ digit >> 6) & 1)


# The bits of a trace's id that decide (OpenTelemetry, consistent probability sampling).
_BITS: Final = 56
_ALL: Final = 1 << _BITS
# So much of its share a client may save up. A new client has one, so that its first flag counts.
CREDIT_MAX: Final = 10.0
# So many clients are known. Then all are forgotten and are new again. The number in a minute holds.
CLIENTS_MAX: Final = 1_024
# The number is counted for a tenth of a minute each, so that nobody waits long for the next.
WINDOW_S: Final = 6.0
# Sums of shares such as 0.1 are not exact.
_NEARLY_ONE: Final = 1.0 - 1e-9


class Sampler:
    """Decides for one configuration."""

    def __init__(self, settings: TracingSettings) -> None:
        self._least = _ALL - floor(settings.ratio * _ALL)
        self._share = settings.forced_ratio
        self._per_window = ceil(settings.forced_per_minute * WINDOW_S / 60.0)
        self._credits: dict[str, float] = {}
        self._window_ends_s = 0.0
        self._left = 0
        self._taken: dict[str, int] = {}  # in this window, by whoever took any

    def begins(self, trace_id: int) -> bool:
        """Whether a trace that begins here is one of the share."""
        return trace_id % _ALL >= self._least

    def seen(self, client: str) -> None:
        """A request of this client has come: its share grows."""
        known = self._credits
        credit = known.get(client)
        if credit is None:
            if len(known) >= CLIENTS_MAX:
                known.clear()
            known[client] = 1.0
        elif credit < CREDIT_MAX:
            known[client] = credit + self._share

    def forced(self, client: str, now_s: float) -> bool:
        """Whether the request that `seen` was told of is traced because its client asks for it."""
        credit = self._credits.get(client, 0.0)
        if self._share <= 0.0 or credit < _NEARLY_ONE or not self._take(client, now_s):
            return False
        self._credits[client] = credit - 1.0
        return True

    def _take(self, client: str, now_s: float) -> bool:
        if now_s >= self._window_ends_s:
            self._window_ends_s = now_s + WINDOW_S
            self._left = self._per_window
            self._taken.clear()
        taken = self._taken.get(client, 0)
        if taken >= self._left:
            return False
        self._taken[client] = taken + 1
        self._left -= 1
        return True


class Trace:
    """The trace of one request. Ids are in hexadecimal. `span_id`: of the request itself."""

    def __init__(
        self, trace_id: bytes, parent_id: bytes, state: bytes, *, sampled: bool, given: bool
    ) -> None:
        """`parent_id`: of the client's span, empty if the trace begins here. `given`: the client
        sent headers of a trace, valid or not."""
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.state = state
        self.sampled = sampled
        self.given = given
        self.span_id = b""

    def headers_for(self, attempt: Try, rng: Random) -> Headers:
        """The headers that make the backend's spans children of this attempt."""
        if not attempt.span_id:
            attempt.span_id = new_span_id(rng)
        return context_headers(self.trace_id, attempt.span_id, self.sampled, self.state)


class Tracer:
    """Begins the traces of one configuration. `offer` takes a sampled request at its end."""

    def __init__(
        self,
        settings: TracingSettings,
        rng: Random,
        metrics: Metrics,
        offer: Callable[[Finished], None],
    ) -> None:
        self.settings = settings
        self._sampler = Sampler(settings)
        self._rng = rng
        self._metrics = metrics
        self.offer = offer

    def begin(self, headers: Headers, client: str, now_s: float, *, known: bool = True) -> Trace:
        """The trace of a request with these headers.

        `client`: its tenant or address. `known`: not one of those who show no key where all should.
        Whatever these ask for, it does not count.
        """
        context, given = context_of(headers)
        sampler = self._sampler
        if known:
            sampler.seen(client)
        if context is None:
            number = self._rng.getrandbits(128)
            sampled = sampler.begins(number)
            trace = Trace(b"%032x" % number, b"", b"", sampled=sampled, given=given)
        else:
            sampled = context.sampled and known and sampler.forced(client, now_s)
            if context.sampled and not sampled:
                self._metrics.traces_capped += 1
            trace = Trace(
                context.trace_id, context.parent_id, context.state, sampled=sampled, given=given
            )
        if sampled:
            trace.span_id = new_span_id(self._rng)
        return trace


def new_span_id(rng: Random) -> bytes:
    return b"%016x" % (rng.getrandbits(64) or 1)
