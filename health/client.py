"""The HTTP client that probes and scrapes use, as far as they know it.

`proxy.wire.questions` implements it.
"""

from typing import Protocol


class Answer(Protocol):
    """A status and a body, or the `reason` why there is none."""

    @property
    def status(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def whole(self) -> bool:
        """Whether nothing of the body was cut."""

    @property
    def reason(self) -> str: ...
    @property
    def certain(self) -> bool:
        """Nobody listens there."""

    @property
    def own(self) -> bool:
        """The process could not ask, which says nothing of the backend."""


class Client(Protocol):
    """Asks one backend, below the path of its URL. A question may be cancelled."""

    async def get(self, path: bytes, timeout_s: float, limit_bytes: int = ...) -> Answer:
        """The answer to a GET, cut at a limit."""

    async def post(
        self,
        path: bytes,
        body: bytes,
        timeout_s: float,
        fields: bytes = ...,
        limit_bytes: int = ...,
    ) -> Answer:
        """The answer to a JSON body. `fields` are more header lines."""

    def hang_up(self) -> None:
        """End the connection. The next question opens a new one."""


class Connections(Protocol):
    """How a backend is reached. `proxy.wire.pool.ConnectionPool` implements it."""

    @property
    def tls(self) -> object:
        """What verifies the certificate of an https backend."""

    def questions(self, authorization: bytes | None = None) -> Client:
        """A client with this key, on a connection of its own."""
