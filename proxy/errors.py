"""Every error that penstock itself answers, classified by how to act on it.

The tree follows who is at fault: the client (4xx), the proxy's own limits, or a
backend. `retryable` says whether another backend may be tried. Messages say
what to do and never hold a backend's URL, a key or a prompt. Rendering to a
dialect's body or stream event is the dialect's.
"""

from typing import ClassVar, Final

NAME_CHARS_MAX: Final = 96


class PenstockError(Exception):
    """An answer of penstock's own: HTTP status, stable code, what to do."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    kind: ClassVar[str] = "internal_server_error"
    message: ClassVar[str] = "penstock failed to serve this request; retry it."
    # Whether the connection's framing is in doubt, so that it cannot be used again.
    closes: ClassVar[bool] = False
    # Whether the same request, sent again, may fare better. SDKs retry 408, 409, 429 and 5xx
    # by themselves, twice, unless they are told not to.
    retry_helps: bool = True

    def __init__(
        self, message: str | None = None, *, param: str | None = None, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message or self.message)
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Retry hints that the OpenAI and Anthropic SDKs obey."""
        hints: list[tuple[bytes, bytes]] = []
        if self.retry_after_s:
            after_ms = round(self.retry_after_s * 1000)
            hints.append((b"retry-after", b"%d" % max(1, -(-after_ms // 1000))))
            hints.append((b"retry-after-ms", b"%d" % after_ms))
        if not self.retry_helps:
            hints.append((b"x-should-retry", b"false"))
        return hints


def _quoted(name: str) -> str:
    """A client's own text, in a message to it: on one line, without marks of ours, cut."""
    cut = name if len(name) <= NAME_CHARS_MAX else name[:NAME_CHARS_MAX] + "..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut.replace("`", "'"))


class ClientError(PenstockError):
    """The request is at fault: no backend is asked."""

    status = 400
    code = "invalid_request"
    kind = "invalid_request_error"
    message = "The request is malformed."


class BadRequest(ClientError):
    """A body or target that cannot be routed; the connection is intact."""


class MalformedHttp(ClientError):
    """HTTP that two parsers might read differently."""

    closes = True


class Unauthorized(ClientError):
    """No tenant has this key, or none that can be read was given: it does not say which."""

    status = 401
    code = "unauthorized"
    kind = "authentication_error"
    message = "A valid API key is needed, as Authorization: Bearer KEY or as x-api-key: KEY."

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"www-authenticate", b"Bearer")]


class UnknownPath(ClientError):
    status = 404
    code = "unknown_path"
    message = "This path is not served here; see the README for the list of paths."


class ModelNotFound(ClientError):
    status = 404
    code = "model_not_found"
    message = "No pool serves this model; GET /v1/models lists what is served."

    def __init__(self, model: str | None) -> None:
        named = f": `{_quoted(model)}`" if model else ""
        message = f"No pool serves this model{named}; GET /v1/models lists what is served."
        super().__init__(message, param="model")


class RequestTimeout(ClientError):
    status = 408
    code = "request_timeout"
    message = "The request was not finished in time; send it at once, then wait for the answer."
    closes = True


class BodyTooLarge(ClientError):
    status = 413
    code = "body_too_large"
    closes = True
    retry_helps = False

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The request body is over the limit of {limit_bytes} bytes.")


class HeadersTooLarge(ClientError):
    status = 431
    code = "headers_too_large"
    retry_helps = False
    message = "The request's head is over the limit; send fewer or shorter headers."
    closes = True


class ExpectationFailed(ClientError):
    status = 417
    code = "unsupported"
    message = "The only expectation spoken here is 100-continue."
    closes = True


class UpgradeRequired(ClientError):
    status = 426
    code = "unsupported"
    message = "WebSocket is not spoken here yet; use the HTTP endpoints."
    closes = True


class UnsupportedCoding(ClientError):
    status = 501
    code = "unsupported"
    message = "The only transfer coding spoken here is chunked."
    closes = True


class UnsupportedVersion(ClientError):
    status = 505
    code = "unsupported"
    message = "Speak HTTP/1.1."
    closes = True


class Overloaded(PenstockError):
    status = 429
    code = "overloaded"
    kind = "rate_limit_error"
    message = "The proxy is at a limit of its own; retry after the time given."
    closes = True

    def __init__(
        self,
        reason: str,
        message: str | None = None,
        *,
        retry_after_s: float,
        hopeless: bool = False,
    ) -> None:
        """`reason` names the limit, for metrics; `hopeless`: retries only add to the load."""
        super().__init__(message, retry_after_s=retry_after_s)
        self.reason = reason
        self.retry_helps = not hopeless


class NoBackendReady(PenstockError):
    status = 503
    code = "no_backend"
    kind = "service_unavailable_error"
    message = "No backend can serve this now; retry after the time given."


class Draining(PenstockError):
    status = 503
    code = "draining"
    kind = "service_unavailable_error"
    message = "This proxy is shutting down; retry on another."
    closes = True

    def __init__(self) -> None:
        super().__init__(retry_after_s=1.0)


class BackendError(PenstockError):
    """A backend failed this request. `reason` names how, for metrics and logs."""

    status = 502
    code = "backend_error"
    kind = "service_unavailable_error"
    message = "Every backend that was tried failed before its first token; retry."
    retryable: ClassVar[bool] = True
    reason: str = "failed"
    # Whether an engine may have worked on it; only such attempts are counted out.
    reached: ClassVar[bool] = True
    # Whether it speaks against the backend's health; too much work does not.
    suspicious: bool = True
    # Whether the backend looks busy for it, so that failing fast attracts nothing.
    penal: bool = True
    # Whether a request could cause it at a sound backend.
    causable: ClassVar[bool] = True
    # Whether the request itself may be the cause, so that only a row of them is the backend's.
    doubtful: ClassVar[bool] = False
    # Whether an engine, or the server before it, died with the request.
    fatal: bool = False
    # What the backend's own Retry-After said, in seconds.
    hint_s: float = 0.0

    def __init__(self) -> None:
        super().__init__(retry_after_s=1.0)

    @property
    def of_backend(self) -> "BackendError":
        """What it tells of the backend, where that is more than its effect on the request."""
        return self


class ConnectFailed(BackendError):
    """Nothing was sent: another backend may serve it at no cost."""

    reason = "connect"
    reached = False
    causable = False


class ConnectionRefused(ConnectFailed):
    """Nobody listens there: known at once, so it counts at once."""

    reason = "refused"


class BackendGone(ConnectionRefused):
    """It took the request, ended the connection, and listens no more: it died of something."""

    reached = True
    causable = True
    fatal = True


class ConnectionReset(BackendError):
    """The connection ended before any byte of an answer."""

    reason = "reset"
    fatal = True


class AnswerCut(BackendError):
    """The answer began and ended early."""

    reason = "cut"
    fatal = True


class AnswerDropped(AnswerCut):
    """Cut without a word by a server that may just be full: vLLM cannot say so in every API."""

    reason = "dropped"
    suspicious = False
    fatal = False


class AnswerMalformed(BackendError):
    """The answer is not HTTP that could be passed on."""

    reason = "malformed"


class AnswerEmpty(BackendError):
    """A stream that ended without a token, and without what belongs to an end."""

    reason = "empty"


class AnswerBare(AnswerEmpty):
    """A stream without a token that says itself that it is whole.

    So vLLM ends what it gives up in its queue, and some requests that no engine has a token
    for (beam search, when the best beam ends at once). Another backend is asked once, where the
    retry budget has room: if it says the same, that is the answer. If it has none, this is, for a
    beam search alone: anything else would be cut, and look whole. No client can accuse a backend
    by it.
    """

    suspicious = False
    penal = False


class AnswerMute(AnswerEmpty):
    """A stream of comments and preambles without end, and no token."""

    reason = "no_events"


class AnswerHeadTooLarge(AnswerMalformed):
    """Some requests have such an answer anywhere: what vLLM packs into bytes is described there."""

    message = "The head of the backend's answer is over the limit; ask for fewer results at once."
    retryable = False
    suspicious = False
    penal = False


class BackendRefused(BackendError):
    """502 or 504, as a status or as the first event of a stream."""

    reason = "status"


class BackendBusy(BackendRefused):
    """503: its queue is full. Another may have room; it is not ill."""

    reason = "busy"
    suspicious = False

    def __init__(self, hint_s: float = 0.0) -> None:
        super().__init__()
        self.hint_s = hint_s


class InternalFault(BackendError):
    """A 500 that says nothing of the backend's end: passed on as it is, and counted."""

    reason = "internal"
    doubtful = True


class BackendDraining(BackendError):
    """It is shutting down: its probes pass, and it answers every request with a failure."""

    reason = "draining"
    reached = False  # its engine takes nothing more, and says so within a millisecond
    causable = False


class AnswerAborted(BackendError):
    """It gave this request up. It need not be ending: that only speaks against it."""

    reason = "aborted"


class EngineDead(BackendError):
    """Its engine died; the server before it follows within a second."""

    reason = "engine_dead"
    fatal = True


class BackendRefusing(BackendError):
    """4xx that its peers do not give."""

    reason = "refusing"
    suspicious = False


class KeyRefused(BackendRefusing):
    """401 or 403 to the pool's own key: no engine has worked on it, and another may take it."""

    message = "The backends refused the proxy's own key; tell its operator."
    reached = False


class NotHere(BackendError):
    """A stateful object that this backend does not have; another may."""

    reason = "not_here"
    reached = False
    suspicious = False
    penal = False


class BackendTimeout(BackendError):
    status = 504
    code = "backend_timeout"
    kind = "timeout_error"
    message = "No backend answered in time; retry, or ask for less."
    reason = "timeout"


class OutOfTime(BackendTimeout):
    """The request's own time is over, ours or its client's: nobody else may try."""

    message = "The time allowed for the request is over."
    reason = "out_of_time"
    retryable = False
    suspicious = False
    penal = False


class ClientOutOfTime(OutOfTime):
    """The time that its client gives it is over, and the client is still there."""

    status = 408
    code = "request_timeout"
    kind = "invalid_request_error"
    message = "The time that this client allows for a request is over; allow more, or ask for less."
    reason = "client_timeout"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"x-should-retry", b"false")]


class PoisonRequest(PenstockError):
    """Engines died on this request, or on one of the same bytes."""

    code = "poison_request"
    message = "Backends died while they worked on this request; do not send it again."

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"x-should-retry", b"false")]


class ResponseOutOfReach(NoBackendReady):
    """Who could be asked does not hold the stored response; the others may."""

    message = "The backend that may hold this response cannot be reached now; retry later."


class ResponseNotFound(ClientError):
    """No backend holds the stored response."""

    status = 404
    message = "No backend knows this response id; it may have expired or its backend restarted."


class StreamBroken(BackendError):
    """The backend failed after its first token: the client has seen part of the answer."""

    code = "stream_broken"
    message = "The backend failed while answering; what was received is incomplete."
    retryable = False

    def __init__(self, reason: str, cause: BackendError | None = None) -> None:
        """`cause`: what the backend failed of, if that is known."""
        super().__init__()
        self.reason = reason
        self._cause = cause
        self.fatal = cause is not None and cause.fatal
        if cause is not None:
            self.suspicious = cause.suspicious

    @property
    def of_backend(self) -> BackendError:
        return self._cause or self


class StreamOutOfTime(StreamBroken):
    """The request's own time is over, after its first token."""

    suspicious = False
    penal = False

    def __init__(self) -> None:
        super().__init__("total")


class StreamOutOfClientTime(StreamOutOfTime):
    """The time that its client gives it is over, after its first token."""

    message = "The time that this client allows for a request is over."

    def __init__(self) -> None:
        super().__init__()
        self.reason = "client_timeout"
