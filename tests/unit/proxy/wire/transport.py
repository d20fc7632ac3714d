"""A transport that keeps what is written to it."""

import asyncio
from typing import Any


class Transport(asyncio.Transport):
    """Stands in for a client's connection."""

    def __init__(self, address: str | None = None) -> None:
        super().__init__({} if address is None else {"peername": (address, 7)})
        self.sent = b""
        self.closed = False
        self.aborted = False
        self.reading = True

    def write(self, data: Any) -> None:
        assert not self.closed
        self.sent += bytes(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def dechunked(sent: bytes) -> tuple[bytes, bytes, bool]:
    """(head, body, complete) of a chunked answer."""
    head, _, rest = sent.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if size == b"0":
            assert rest == b"\r\n"
            return head, body, True
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return head, body, False


class Notes(asyncio.Protocol):
    """Whatever a connection is passed on to: notes what it is told."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.seen.append("made")

    def data_received(self, data: bytes) -> None:
        self.seen.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.seen.append("lost")
