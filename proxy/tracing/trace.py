"""What one request has to do with its trace while it runs, and which requests are traced.

The caller's decision counts, so that a trace is whole. Without a caller's, a share of the traces is
taken, by the lowest bits of their ids: whoever else decides by them decides alike. A client may
have a request traced by the sampled flag. But that is limited to a share of its own requests and,
for all clients together, to a number in a minute. Of that number nobody gets more than is left for
the others.
"""

from collections.abc import Callable
from math import ceil, floor
from random import Random
from typing import Final

from penstock.conf.tracing import TracingSettings
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.telemetry.record import Try
from penstock.proxy.tracing.context import context_headers, context_of
from penstock.proxy.tracing.span import Finished
from penstock.proxy.wire.header_fields import Headers

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
