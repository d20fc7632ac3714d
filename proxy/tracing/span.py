"""The spans of a request that has ended: one of its own, and a child for each attempt. Pure.

They have the attributes of OpenTelemetry's conventions for HTTP and for generative AI, and some of
penstock's own. No prompt, no answer, no key, no address of a client and no URL of a backend is in
them. A backend goes by its name in the configuration, also as `server.address`: for whoever looks
at a trace, that is the host.
"""

from collections import deque
from typing import Final

from penstock.proxy.telemetry.log_lines import printable
from penstock.proxy.telemetry.recent import Kept
from penstock.proxy.telemetry.record import Record, Try

# About 1 KB each, and 2 KB at most: the longest id, model and tracestate.
SPANS_MAX: Final = 4_096


class Finished:
    """One request. `ended_unix_ns`: when it ended, by the clock of receivers.

    `route` is empty if its path is not served. `max_tokens`: 0 if it set no limit.
    """

    def __init__(
        self,
        kept: Kept,
        trace_id: bytes,
        span_id: bytes,
        parent_id: bytes,
        state: bytes,
        method: str,
        route: str,
        scheme: str,
        ended_unix_ns: int,
        max_tokens: int = 0,
        choices: int = 1,
    ) -> None:
        self.kept = kept
        self.tries: list[Try] = kept.record.tries  # those of the record are fewer once it is kept
        self.trace_id = trace_id
        self.span_id = span_id
        self.parent_id = parent_id
        self.state = state
        self.method = method
        self.route = route
        self.scheme = scheme
        self.ended_unix_ns = ended_unix_ns
        self.max_tokens = max_tokens
        self.choices = choices

    @property
    def spans(self) -> int:
        """How many it has: its own, and one for each attempt."""
        return 1 + len(self.tries)


class Waiting:
    """Requests whose spans are not sent yet, the oldest first."""

    def __init__(self, spans_max: int = SPANS_MAX) -> None:
        self._spans_max = spans_max
        self._requests: deque[Finished] = deque()
        self._by_client: dict[str, int] = {}
        self.spans = 0

    def put(self, request: Finished) -> bool:
        """Take a request. False: there is no room for it."""
        client, spans = request.kept.owner, request.spans
        mine = self._by_client.get(client, 0) + spans
        if mine > self._spans_max - self.spans:
            return False
        self._by_client[client] = mine
        self._requests.append(request)
        self.spans += spans
        return True

    def take(self, spans: int) -> list[Finished]:
        """The oldest, until there are so many spans."""
        taken: list[Finished] = []
        while spans > 0 and self._requests:
            request = self._requests.popleft()
            client = request.kept.owner
            self.spans -= request.spans
            self._by_client[client] -= request.spans
            if not self._by_client[client]:
                del self._by_client[client]
            spans -= request.spans
            taken.append(request)
        return taken


Value = str | int | float | bool
Attributes = dict[str, Value]
Event = tuple[str, float, Attributes]

SERVER: Final = 2
CLIENT: Final = 3
# Its client left before it had a status.
LEFT: Final = 499
CLIENT_LEFT: Final = "client_left"
PROVIDER: Final = "vllm"
# The paths whose work the conventions have a name for. Attempts of others are HTTP requests only.
OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/chat/completions/batch": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/inference/v1/generate": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v2/embed": "embeddings",
}


class Span:
    """One span. Times are of the data plane's clock. `error`: why it failed. Empty: it did not."""

    def __init__(
        self,
        name: str,
        kind: int,
        span_id: bytes,
        parent_id: bytes,
        began_s: float,
        ended_s: float,
        error: str,
    ) -> None:
        self.name = name
        self.kind = kind
        self.span_id = span_id
        self.parent_id = parent_id
        self.began_s = began_s
        self.ended_s = ended_s
        self.error = error
        self.attributes: Attributes = {"error.type": error} if error else {}
        self.events: list[Event] = []

    def event(self, name: str, at_s: float) -> None:
        """Something has happened, unless it never did."""
        if at_s:
            self.events.append((name, at_s, {}))


def spans_of(request: Finished) -> list[Span]:
    """The request's own span, then those of its attempts in their order."""
    return [_of_request(request), *_of_attempts(request)]


def _of_request(request: Finished) -> Span:
    kept, record = request.kept, request.kept.record
    name = f"{request.method} {request.route}" if request.route else request.method
    error = _error_of(record)
    span = Span(
        name, SERVER, request.span_id, request.parent_id, record.began_s, record.ended_s, error
    )
    told = span.attributes
    told["http.request.method"] = request.method
    told["url.scheme"] = request.scheme
    if request.route:
        told["http.route"] = told["url.path"] = request.route
    if record.status != LEFT:  # its client has seen none
        told["http.response.status_code"] = record.status
    told["penstock.request_id"] = kept.request_id.decode("ascii")
    for key, text in (
        ("penstock.tenant", kept.tenant),
        ("penstock.class", record.service_class),
        ("penstock.pool", record.pool),
        ("penstock.degraded", record.degraded),
        ("penstock.error", record.error or ("" if record.whole else CLIENT_LEFT)),
    ):
        if text:
            told[key] = text
    if record.attempts:
        told["penstock.attempts"] = record.attempts
    span.event("penstock.accepted", record.accepted_s)
    span.event("penstock.body_received", record.received_s)
    _tell_wait(span, record)
    return span


def _tell_wait(span: Span, record: Record) -> None:
    """When it began to wait for room at a backend, and when that was over."""
    if record.waited_s:
        until_s = record.tries[0].began_s if record.tries else record.ended_s
        why: Attributes = {"penstock.waits_for": record.waits_for}
        span.events.append(("penstock.queue_entered", until_s - record.waited_s, why))
        span.events.append(("penstock.queue_left", until_s, {}))


def _error_of(record: Record) -> str:
    """Why the server failed. Empty: it did not. A client that is at fault or leaves is no error."""
    if 400 <= record.status < 500:
        return ""
    return record.error or (str(record.status) if record.status >= 500 else "")


def _of_attempts(request: Finished) -> list[Span]:
    operation, model = OPERATIONS.get(request.route), request.kept.model
    asked: Attributes = {}
    if operation is not None:
        asked = {"gen_ai.operation.name": operation, "gen_ai.provider.name": PROVIDER}
        if model is not None:
            model = asked["gen_ai.request.model"] = printable(model)
        if request.kept.stream:
            asked["gen_ai.request.stream"] = True
        if request.max_tokens:
            asked["gen_ai.request.max_tokens"] = request.max_tokens
        if request.choices > 1:
            asked["gen_ai.request.choice.count"] = request.choices
    name = operation or request.method
    if operation is not None and model is not None:
        name = f"{operation} {model}"
    return [_of_attempt(request, number, name, asked) for number in range(len(request.tries))]


def _of_attempt(request: Finished, number: int, name: str, asked: Attributes) -> Span:
    record, attempt = request.kept.record, request.tries[number]
    ended_s = attempt.ended_s or record.ended_s
    # One that no backend was told of has no children, so any id does.
    unsent_id = b"%016x" % ((int(request.span_id, 16) ^ (number + 1) << 32) or 1)
    span_id = attempt.span_id or unsent_id
    span = Span(name, CLIENT, span_id, request.span_id, attempt.began_s, ended_s, attempt.failure)
    told = span.attributes
    told["http.request.method"] = request.method
    told["server.address"] = told["penstock.backend"] = attempt.backend
    told["penstock.reason"] = attempt.reason
    if number:
        told["http.request.resend_count"] = number
    told.update(asked)
    span.event("penstock.sent", attempt.sent_s)
    span.event("penstock.first_byte", attempt.first_byte_s)
    if record.streamed:
        span.event("penstock.first_token", attempt.first_token_s)
    if asked and attempt is request.tries[-1]:
        _tell_answer(told, record, attempt)
    return span


def _tell_answer(told: Attributes, record: Record, attempt: Try) -> None:
    usage = record.usage
    if usage is not None:
        told["gen_ai.usage.input_tokens"] = usage.prompt_tokens
        told["gen_ai.usage.output_tokens"] = usage.completion_tokens
        if usage.cached_tokens is not None:
            told["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if record.streamed and attempt.first_token_s and attempt.sent_s:
        first_s = attempt.first_token_s - attempt.sent_s
        told["gen_ai.response.time_to_first_chunk"] = round(first_s, 6)
