"""The base of all errors that penstock itself answers: a status, a stable code, what to do.

Messages never hold a backend's URL, a key or a prompt. A dialect renders an error as a body or
as a stream event.
"""

from typing import ClassVar, Final

NAME_CHARS_MAX: Final = 96


class PenstockError(Exception):
    """An answer of penstock's own: HTTP status, stable code, what to do."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    kind: ClassVar[str] = "internal_server_error"
    message: ClassVar[str] = "penstock failed to serve this request; retry it."
    # Whether the end of the request is unknown, so that the connection cannot be used again.
    closes: ClassVar[bool] = False
    # Whether a retry of the same request may succeed. SDKs retry 408, 409, 429 and 5xx twice
    # unless they are told not to.
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


def quoted(name: str) -> str:
    """Text of the client, safe to quote in a message: one line, no backquotes, shortened."""
    cut = name if len(name) <= NAME_CHARS_MAX else name[:NAME_CHARS_MAX] + "..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut.replace("`", "'"))
