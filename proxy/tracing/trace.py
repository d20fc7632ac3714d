"""What one request has to do with its trace while it runs, and begins it."""

from collections.abc import Callable
from random import Random

from penstock.conf.tracing import TracingSettings
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.telemetry.record import Try
from penstock.proxy.tracing.context import context_headers, context_of
from penstock.proxy.tracing.finished import Finished
from penstock.proxy.tracing.sampling import Sampler
from penstock.proxy.wire.header_fields import Headers


class Trace:
    """The trace of one request. Ids are in hexadecimal. `span_id`: of the request itself."""

    __slots__ = ("given", "parent_id", "sampled", "span_id", "state", "trace_id")

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

    __slots__ = ("_metrics", "_rng", "_sampler", "offer", "settings")

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
