"""A receiver of spans that reads them as OpenTelemetry's own definitions say."""

import asyncio
import base64
import gzip
import ssl
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.e2e.process import until

PATH = "/v1/traces"


@dataclass
class Span:
    """One span as it arrived. Ids are in hexadecimal, empty where there is none."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    failed: bool
    attributes: dict[str, Any]
    events: list[str]


class SpanReceiver:
    """Takes spans on a port of its own. `statuses`: what it answers first, by turns."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.raw: list[bytes] = []
        self.heads: list[dict[str, str]] = []
        self.statuses: list[int] = []
        self.silent = False  # it never answers
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Listen; after a stop on the same port."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post(PATH, self._take)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, "127.0.0.1", self.port, reuse_address=True, ssl_context=tls
        )
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def until(self, spans: int, within_s: float = 10.0) -> None:
        """Wait until so many have arrived."""
        try:
            await until(lambda: len(self.spans) >= spans, within_s)
        except TimeoutError:
            raise AssertionError(f"{len(self.spans)} spans, not {spans}") from None

    async def _take(self, request: web.Request) -> web.Response:
        self.heads.append({name.lower(): value for name, value in request.headers.items()})
        body = await request.read()  # aiohttp has decompressed it
        if self.silent:
            await asyncio.Event().wait()
        if self.statuses:
            return web.Response(status=self.statuses.pop(0))
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        self.raw.append(body)
        self.spans += spans_of(body, request.content_type)
        # An export without errors is answered by an empty message, in the same encoding.
        empty = b"{}" if request.content_type == "application/json" else b""
        return web.Response(body=empty, content_type=request.content_type)


def spans_of(body: bytes, content_type: str) -> list[Span]:
    """The spans of one export. Raises ValueError if it is not as OTLP defines it."""
    export = ExportTraceServiceRequest()
    if content_type == "application/json":
        ParseDict(_with_base64(orjson.loads(body)), export)
    else:
        export.ParseFromString(body)
    found = []
    for resource in export.resource_spans:
        service = _plain(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                assert len(span.trace_id) == 16
                assert len(span.span_id) == 8
                found.append(
                    Span(
                        service,
                        span.name,
                        span.kind,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        span.status.code == 2,
                        _plain(span.attributes),
                        [event.name for event in span.events],
                    )
                )
    return found


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


def _with_base64(value: Any) -> Any:
    """Ids are in hexadecimal in OTLP's JSON, where protobuf's has base64."""
    if isinstance(value, list):
        return [_with_base64(each) for each in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {
        key: base64.b64encode(bytes.fromhex(each)).decode() if key in ids else _with_base64(each)
        for key, each in value.items()
    }
