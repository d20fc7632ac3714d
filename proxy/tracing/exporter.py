"""Sends the spans to their receiver, in batches, beside the requests.

A request costs the loop one append when it ends. Spans are made in short steps between which others
run, and compressed in a thread. What a slow or dead receiver does not take in time is dropped and
counted: requests never wait for it, and the end of the process waits for a moment only.

Spans as OTLP in JSON, and what a receiver answers. Pure.

Written by ourselves: the SDK of OpenTelemetry costs about 175 us of the loop for a request with two
spans, which is more than the request. JSON, because orjson writes it three times as fast as Python
can write protobuf. Collectors take both.
"""

import asyncio
import contextlib
import logging
import ssl
import zlib
from collections.abc import Callable
from random import Random
from time import monotonic
from typing import Any, Final

import msgspec
import orjson

from penstock import proxy
from penstock.conf.tracing import TracingSettings
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.tracing.span import Attributes, Event, Finished, Span, Value, Waiting, spans_of
from penstock.proxy.tracing.trace import Tracer
from penstock.proxy.wire.handshakes import HandshakeThreads
from penstock.proxy.wire.host import Names
from penstock.proxy.wire.pool import ConnectionPool

# OTLP's flags of a span: sampled, and whether it is known if the parent is remote, and is.
_LOCAL: Final = 0x101
_REMOTE: Final = 0x301
_ERROR: Final = {"code": 2}
_NS: Final = 1_000_000_000


class Partial(msgspec.Struct):
    """`partialSuccess`. A number may come as text."""

    rejectedSpans: int | str = 0  # noqa: N815 - OTLP's name


class Said(msgspec.Struct):
    """The answer to an export."""

    partialSuccess: Partial | None = None  # noqa: N815 - OTLP's name


_said = msgspec.json.Decoder(Said)


def resource_of(service_name: str, version: str, instance_id: str) -> bytes:
    """The beginning of each export: who sends it."""
    told: Attributes = {
        "service.name": service_name,
        "service.version": version,
        "service.instance.id": instance_id,
    }
    resource = orjson.dumps({"attributes": _attributes(told)})
    scope = orjson.dumps({"name": "penstock", "version": version})
    return b'{"resourceSpans":[{"resource":%b,"scopeSpans":[{"scope":%b,"spans":[' % (
        resource,
        scope,
    )


def export_of(resource: bytes, spans: list[bytes]) -> bytes:
    """The body of one export."""
    return b"%b%b]}]}]}" % (resource, b",".join(spans))


def encoded(request: Finished) -> list[bytes]:
    """Each span of a request as JSON."""
    record = request.kept.record
    # From the data plane's clock to that of receivers.
    offset_ns = request.ended_unix_ns - int(record.ended_s * _NS)
    trace_id, state = request.trace_id.decode("ascii"), request.state.decode("ascii")
    return [
        orjson.dumps(_told(span, trace_id, state, offset_ns, remote=not number))
        for number, span in enumerate(spans_of(request))
    ]


def rejected(answer: bytes) -> int:
    """How many spans the receiver did not take, by its answer to an export."""
    try:
        said = _said.decode(answer) if answer else Said()
        return max(0, int(said.partialSuccess.rejectedSpans)) if said.partialSuccess else 0
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return 0  # protobuf, or nothing that is known


def _told(span: Span, trace_id: str, state: str, offset_ns: int, *, remote: bool) -> dict[str, Any]:
    told: dict[str, Any] = {
        "traceId": trace_id,
        "spanId": span.span_id.decode("ascii"),
        "flags": _REMOTE if remote and span.parent_id else _LOCAL,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(offset_ns + int(span.began_s * _NS)),
        "endTimeUnixNano": str(offset_ns + int(span.ended_s * _NS)),
        "attributes": _attributes(span.attributes),
        "events": [_event(each, offset_ns) for each in span.events],
    }
    if span.parent_id:
        told["parentSpanId"] = span.parent_id.decode("ascii")
    if state:
        told["traceState"] = state
    if span.error:
        told["status"] = _ERROR
    return told


def _event(event: Event, offset_ns: int) -> dict[str, Any]:
    name, at_s, told = event
    found: dict[str, Any] = {"name": name, "timeUnixNano": str(offset_ns + int(at_s * _NS))}
    if told:
        found["attributes"] = _attributes(told)
    return found


def _attributes(told: Attributes) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in told.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value}


logger = logging.getLogger(__name__)

# A batch is sent when it has so many spans, about 500 KB before it is compressed, or so old ones.
BATCH_SPANS: Final = 512
FLUSH_S: Final = 1.0
# Spans of so many requests are made at once. They take some 30 us each.
AT_ONCE: Final = 8
# The time for an answer. Receivers in the same network take milliseconds.
ANSWER_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 65_536
# Waits between two tries of one batch, and how long it is tried.
WAIT_S: Final = 1.0
WAIT_S_MAX: Final = 10.0
BATCH_S: Final = 30.0
# The time for what is left when the process ends.
STOP_S: Final = 1.0
_TRY_AGAIN: Final = frozenset({408, 429, 502, 503, 504})
_GZIP: Final = 31  # zlib's number for gzip with the largest window


class Receiver:
    """Where spans go, and what every export begins with."""

    def __init__(
        self,
        settings: TracingSettings,
        connections: ConnectionPool,
        instance_id: str,
    ) -> None:
        self.connections = connections
        self._questions = connections.questions()
        lines = settings.headers.get_secret_value().splitlines() if settings.headers else []
        self._fields = b"".join(
            [b"content-encoding: gzip\r\n", *(each.encode("ascii") + b"\r\n" for each in lines)]
        )
        self.resource = resource_of(settings.service_name, proxy.__version__, instance_id)

    async def post(self, body: bytes) -> tuple[str, int]:
        """Why an export was not taken (empty if it was), and how many spans were rejected."""
        answer = await self._questions.post(b"", body, ANSWER_S, self._fields, ANSWER_BYTES_MAX)
        if answer.reason:
            self._questions.hang_up()
            return answer.reason, 0
        if not 200 <= answer.status < 300:
            return f"status_{answer.status}", 0
        return "", rejected(answer.body) if answer.whole else 0

    def close(self) -> None:
        self._questions.hang_up()
        self.connections.close()


class Exporter:
    """Follows the configurations in use. `stop` ends it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
        rng: Random,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._rng = rng
        self._now = now
        self._names = Names()
        # Threads of its own: a broken receiver delays no backend's handshakes.
        self._threads = HandshakeThreads(loop)
        self._instance_id = f"{rng.getrandbits(64):016x}"
        self._receiver: Receiver | None = None
        self._outdated: list[Receiver] = []  # before a reload, maybe still in use
        self._tls: ssl.SSLContext | None = None
        self._waiting = Waiting()
        self._sending = 0  # spans of the batch under way
        self._task: asyncio.Task[None] | None = None
        self._some, self._many, self._stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._failing = False
        self.tracer: Tracer | None = None  # None: there is no receiver

    def use(self, settings: TracingSettings, tls: ssl.SSLContext | None) -> None:
        """Trace by these settings from now on. `tls`: for a receiver with https."""
        tracer = self.tracer
        if tracer is not None and tracer.settings == settings and self._tls is tls:
            return
        self._tls = tls
        if self._receiver is not None:
            self._outdated.append(self._receiver)
            self._receiver = None
        if not self._sending:  # else after its batch
            self._close_outdated()
        if settings.otlp_endpoint is None:
            self.tracer = None
            self._drop(self._waiting.take(self._waiting.spans))
            return
        connections = ConnectionPool(
            self._loop,
            settings.otlp_endpoint,
            connect_timeout_s=ANSWER_S,
            name="receiver of spans",
            names=self._names,
            threads=self._threads,
            tls=tls,
        )
        self._receiver = Receiver(settings, connections, self._instance_id)
        self.tracer = Tracer(settings, self._rng, self._metrics, self._offer)
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """Send what is left, for a moment. Nothing may be offered any more."""
        self._stopping.set()
        self._some.set()
        self._many.set()
        before = self._metrics.trace_spans["dropped",]
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._task
        lost = self._metrics.trace_spans["dropped",] - before
        lost += self._sending + self._waiting.spans
        if lost:
            logger.warning("the process ends, spans were not delivered spans=%d", lost)
        if self._receiver is not None:
            self._outdated.append(self._receiver)
        self._close_outdated()

    def _offer(self, request: Finished) -> None:
        if not self._waiting.put(request):
            self._metrics.trace_spans.add("dropped", count=request.spans)
            return
        self._some.set()
        if self._waiting.spans >= BATCH_SPANS:
            self._many.set()

    async def _run(self) -> None:
        while self._waiting.spans or not self._stopping.is_set():
            await self._some.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._many.wait()
            requests = self._waiting.take(BATCH_SPANS)
            self._sending = sum([each.spans for each in requests])
            if not self._stopping.is_set():
                if not self._waiting.spans:
                    self._some.clear()
                if self._waiting.spans < BATCH_SPANS:
                    self._many.clear()
            try:
                if requests:
                    await self._send(requests)
            except Exception:
                logger.exception("sending spans failed")
                self._drop(requests)
            self._sending = 0
            self._close_outdated()

    async def _send(self, requests: list[Finished]) -> None:
        """Send a batch, for a limited time."""
        spans: list[bytes] = []
        for number, request in enumerate(requests, 1):
            spans += encoded(request)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        until_s, wait_s = self._now() + BATCH_S, WAIT_S
        while (receiver := self._receiver) is not None:  # a reload may bring another one
            body = export_of(receiver.resource, spans)
            body = await asyncio.to_thread(_compressed, body)
            over = await self._post(receiver, body, len(spans))
            if over:
                return
            if self._now() + wait_s > until_s or self._stopping.is_set():
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s * (0.5 + self._rng.random())):
                    await self._stopping.wait()
            wait_s = min(2 * wait_s, WAIT_S_MAX)
        self._metrics.trace_spans.add("dropped", count=len(spans))

    async def _post(self, receiver: Receiver, body: bytes, spans: int) -> bool:
        """Send an export once. False: it may be taken later."""
        reason, rejected = await receiver.post(body)
        if reason and not self._failing:
            logger.warning("spans are not delivered reason=%s", reason)
        elif not reason and self._failing:
            logger.info("spans are delivered again")
        self._failing = bool(reason)
        if reason.startswith("status_") and int(reason[7:]) not in _TRY_AGAIN:
            rejected = spans
        elif reason:
            return False
        rejected = min(rejected, spans)
        if rejected < spans:
            self._metrics.trace_spans.add("sent", count=spans - rejected)
        if rejected:
            self._metrics.trace_spans.add("refused", count=rejected)
        return True

    def _close_outdated(self) -> None:
        while self._outdated:
            self._outdated.pop().close()

    def _drop(self, requests: list[Finished]) -> None:
        spans = sum([each.spans for each in requests])
        if spans:
            self._metrics.trace_spans.add("dropped", count=spans)


def _compressed(body: bytes) -> bytes:
    """Without the interpreter's lock: others run meanwhile."""
    return zlib.compress(body, 1, _GZIP)
