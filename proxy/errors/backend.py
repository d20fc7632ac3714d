"""Errors of a backend. `retryable` says whether another backend may be tried."""

from typing import ClassVar

from penstock.proxy.errors.error import PenstockError


class BackendError(PenstockError):
    """A backend failed this request. `reason` names how, for metrics and logs."""

    status = 502
    code = "backend_error"
    kind = "service_unavailable_error"
    message = "Every backend that was tried failed before its first token; retry."
    retryable: ClassVar[bool] = True
    reason: str = "failed"
    # Whether an engine may have worked on the request. Only such attempts are limited.
    reached: ClassVar[bool] = True
    # Whether it counts against the backend's health. "Too much work" does not.
    suspicious: bool = True
    # Whether the backend is charged a load penalty, so that failing fast wins it no requests.
    penal: bool = True
    # Whether a request can cause this failure at a healthy backend.
    causable: ClassVar[bool] = True
    # Whether the request may be the cause: the first one in a row then costs no penalty.
    doubtful: ClassVar[bool] = False
    # Whether an engine, or its API server, may have died of the request.
    fatal: bool = False
    # Set if the backend only has too much to do: its own Retry-After in seconds, 0.0 without one.
    busy_s: float | None = None

    def __init__(self) -> None:
        super().__init__(retry_after_s=1.0)

    @property
    def of_backend(self) -> "BackendError":
        """The error to count against the backend. It may differ from what the client gets."""
        return self


class Blameless(BackendError):
    """It counts neither against the backend's health nor as load."""

    suspicious = False
    penal = False


class ConnectFailed(BackendError):
    """No connection: nothing was sent, so another backend may be tried at no cost."""

    reason = "connect"
    reached = False
    causable = False


class NoPorts(Blameless, ConnectFailed):
    """The proxy has no free local port for this backend. It may have one for another backend.

    When it has none for any backend, the request is shed.
    """

    reason = "ports"


class ConnectionRefused(ConnectFailed):
    """Nobody listens at the address. One such failure is certain and ejects the backend."""

    reason = "refused"


class BackendGone(ConnectionRefused):
    """The backend took the request, closed the connection and stopped listening: it died."""

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
    """The answer was cut without an error. A full vLLM does this in some APIs."""

    reason = "dropped"
    suspicious = False
    fatal = False


class AnswerMalformed(BackendError):
    """The answer is not HTTP that can be passed on."""

    reason = "malformed"


class AnswerEmpty(BackendError):
    """A stream ended without a token and without a proper end."""

    reason = "empty"


class AnswerBare(Blameless, AnswerEmpty):
    """A stream without a token that ends as if it were complete.

    vLLM does this to requests that it gives up in its queue. A beam search whose best beam ends at
    once looks the same: it is tried once more, and if another backend says the same, or none
    answers, this is the answer. Other requests move on as after any failure. Both need room in
    the retry budget. It is no failure of the backend. But it costs a penalty for that client
    and counts as a refusal, so that giving up fast does not attract requests.
    """


class AnswerMute(AnswerEmpty):
    """A stream of comments and preambles that does not end and has no token."""

    reason = "no_events"


class AnswerHeadTooLarge(Blameless, AnswerMalformed):
    """The head is too large. Some requests cause it anywhere: vLLM puts data into a header."""

    message = "The head of the backend's answer is over the limit; ask for fewer results at once."
    retryable = False


class ErrorTooLarge(Blameless):
    """An error too large to hold, for a client that was already sent the head of a stream."""

    message = "The backend answered with an error that is too large to pass on in a stream."
    retryable = False


class BackendRefused(BackendError):
    """The backend answered 502 or 504, as a status or as the first event of a stream."""

    reason = "status"


class BackendBusy(Blameless, BackendRefused):
    """The backend answered 429 or 503: its queue is full. It is healthy, another may have room."""

    reason = "busy"
    reached = False  # it refuses within a millisecond, and no engine works on the request

    def __init__(self, busy_s: float = 0.0) -> None:
        super().__init__()
        self.busy_s = busy_s


class InternalFault(BackendError):
    """A 500 that does not say that the backend is ending. It is passed on, and counted."""

    reason = "internal"
    doubtful = True


class BackendDraining(BackendError):
    """The backend shuts down: its probes pass, but it answers every request with a failure."""

    reason = "draining"
    reached = False  # its engine takes no new work, and refuses within a millisecond
    causable = False


class AnswerAborted(BackendError):
    """The backend gave this request up. That alone does not mean that it shuts down."""

    reason = "aborted"


class EngineDead(BackendError):
    """The backend's engine died. Its API server ends within a second."""

    reason = "engine_dead"
    fatal = True


class BackendRefusing(BackendError):
    """A 4xx that other backends of the pool do not give."""

    reason = "refusing"
    suspicious = False


class KeyRefused(BackendRefusing):
    """The backend refused the pool's own key. No engine worked on it, another may take it."""

    message = "The backends refused the proxy's own key; tell the operator of the proxy."
    reached = False


class NotHere(Blameless):
    """This backend does not hold the stored object. Another one may."""

    reason = "not_here"
    reached = False


class BackendTimeout(BackendError):
    status = 504
    code = "backend_timeout"
    kind = "timeout_error"
    message = "No backend answered in time; retry, or ask for less."
    reason = "timeout"


class BackendHung(Blameless, BackendTimeout):
    """Probes have found that it hangs, and judged it. The request waits there no longer."""

    reason = "hung"


class OutOfTime(Blameless, BackendTimeout):
    """The request's time is over, by our limit or its client's. No other backend may try."""

    message = "The time allowed for the request is over."
    reason = "out_of_time"
    retryable = False


class ClientOutOfTime(OutOfTime):
    """The time that the client allows is over, and the client is still connected."""

    status = 408
    code = "request_timeout"
    kind = "invalid_request_error"
    message = "The time that this client allows for a request is over; allow more, or ask for less."
    reason = "client_timeout"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"x-should-retry", b"false")]


class StreamBroken(BackendError):
    """The backend failed after its first token. The client has a part of the answer."""

    code = "stream_broken"
    message = "The backend failed, so this answer is incomplete; send the request again."
    retryable = False

    def __init__(self, reason: str, cause: BackendError | None = None, told: bytes = b"") -> None:
        """`cause`: why the backend failed, if that is known. `told`: the event with which it ended
        the stream as its API does."""
        super().__init__()
        self.reason = reason
        self.told = told
        self._cause = cause
        self.fatal = cause is not None and cause.fatal
        if cause is not None:
            self.suspicious, self.penal = cause.suspicious, cause.penal

    @property
    def of_backend(self) -> BackendError:
        return self._cause or self


class StreamOutOfTime(Blameless, StreamBroken):
    """The request's time is over, after its first token."""

    message = "The time allowed for the request is over, so this answer is incomplete."

    def __init__(self) -> None:
        super().__init__("total")


class StreamOutOfClientTime(StreamOutOfTime):
    """The time that the client allows is over, after the first token."""

    message = "The time that this client allows for a request is over."

    def __init__(self) -> None:
        super().__init__()
        self.reason = "client_timeout"


class Lacking(OSError):
    """No connection could be tried: this process lacks something. No backend is to blame."""


class Unresolved(OSError):
    """The backend's host has no address."""
