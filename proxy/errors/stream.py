"""A backend failed after its answer had begun: the client must see that the stream broke."""

from penstock.proxy.errors.backend import BackendError


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


class StreamOutOfTime(StreamBroken):
    """The request's time is over, after its first token."""

    message = "The time allowed for the request is over, so this answer is incomplete."
    suspicious = False
    penal = False

    def __init__(self) -> None:
        super().__init__("total")


class StreamOutOfClientTime(StreamOutOfTime):
    """The time that the client allows is over, after the first token."""

    message = "The time that this client allows for a request is over."

    def __init__(self) -> None:
        super().__init__()
        self.reason = "client_timeout"
