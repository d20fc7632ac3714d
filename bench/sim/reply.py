"""One answer on its way out, framed as uvicorn frames it.

Streams are chunked, one chunk per event. Nothing here waits: bytes go to the transport in the
call that makes them. Faults that bend the framing (splits, CR LF, second answers) are applied
here; which answer to give is decided elsewhere.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from penstock.bench.sim.faults import Fault, FaultKind, Taken

JSON: Final = "application/json"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
KEEP_ALIVE_COMMENT: Final = b": keep-alive\n\n"

_NO_FAULTS: Final[Taken] = {}
_SECOND_BODY: Final = b'{"object":"second answer"}'
_BENDING: Final = frozenset({FaultKind.SPLIT, FaultKind.CRLF, FaultKind.CUT_AT_BYTE})


class Reply:
    """Writes one answer to a connection; `gone` is called if the client leaves before its end."""

    __slots__ = (
        "_bent",
        "_clock",
        "_ended",
        "_event_bytes",
        "_finished",
        "_loop",
        "_split_rest",
        "_transport",
        "faults",
        "gone",
        "keep_alive",
        "muted",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        clock: Callable[[], float],
        finished: Callable[["Reply"], None],
        *,
        keep_alive: bool,
    ) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self.keep_alive = keep_alive
        self._ended = False
        self._bent = False
        self._split_rest = b""
        self._event_bytes = 0
        self._finished = finished
        self.faults = _NO_FAULTS
        self.gone: Callable[[], None] | None = None
        self.muted = False
        """Writes nothing: the server hangs."""

    def apply(self, faults: Taken) -> None:
        """Let these faults bend this answer."""
        self.faults = faults
        self._bent = not _BENDING.isdisjoint(faults)

    def whole(
        self, status: int, body: bytes, content_type: str = JSON, *, vary: bool = True
    ) -> None:
        """Send a whole answer and end it; vLLM adds `vary` unless a handler has failed."""
        headers = {"content-length": str(len(body))}
        if body:
            headers["content-type"] = content_type
        if vary:
            headers["vary"] = "Origin"
        self._write(self._head(status, headers) + b"\r\n" + body)
        self._end()

    def open_stream(self) -> None:
        """Send the 200 and its headers; events follow."""
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "vary": "Origin",
            "transfer-encoding": "chunked",
        }
        self._write(self._head(200, headers) + b"\r\n")

    def event(self, event: bytes) -> None:
        """Send one event as one chunk."""
        if self._bent:
            self._bent_event(event)
        elif not self.muted:
            self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))

    def close_stream(self) -> None:
        if self._ended:
            return
        if self._split_rest:
            self._loop.call_later(self.faults[FaultKind.SPLIT].delay_s, self.close_stream)
            return
        self._write(b"0\r\n\r\n")
        self._end()

    def head_only(self, length: int) -> None:
        """Promise a JSON body that does not come."""
        head = self._head(200, {"content-length": str(length), "content-type": JSON})
        self._write(head + b"\r\n")

    def raw(self, data: bytes) -> None:
        self._write(data)

    def cut(self, *, rst: bool) -> None:
        """End the connection in the middle of an answer; what was said so far still goes out."""
        self._ended = True
        if rst:
            reset_on_close(self._transport)
        self._transport.close()

    def _head(self, status: int, headers: dict[str, str]) -> bytes:
        """Status line and headers, without the empty line that ends them."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        close = "" if self.keep_alive else "connection: close\r\n"
        date = formatdate(self._clock(), usegmt=True)
        phrase = HTTPStatus(status).phrase
        return (
            f"HTTP/1.1 {status} {phrase}\r\ndate: {date}\r\nserver: uvicorn\r\n{lines}{close}"
        ).encode()

    def _write(self, data: bytes) -> None:
        if not self.muted:
            self._transport.write(data)

    def _end(self) -> None:
        if self.muted or self._ended:
            return
        self._ended = True
        if FaultKind.SECOND_ANSWER in self.faults:
            self._transport.write(second_answer())
        self._finished(self)

    def _bent_event(self, event: bytes) -> None:
        if FaultKind.CRLF in self.faults:
            event = event.replace(b"\n", b"\r\n")
        ending = self.faults.get(FaultKind.CUT_AT_BYTE)
        if ending is not None:
            self._event_until(event, ending)
            return
        chunk = b"%x\r\n%b\r\n" % (len(event), event)
        split = self.faults.get(FaultKind.SPLIT)
        if split is None:
            self._write(chunk)
            return
        # What is still held back goes first, so that events keep their order.
        self._flush_rest()
        cut = chunk.index(b"\n") + 1 + split.at_byte
        self._write(chunk[:cut])
        self._split_rest = chunk[cut:]
        self._loop.call_later(split.delay_s, self._flush_rest)

    def _event_until(self, event: bytes, cut: Fault) -> None:
        """The event, or as much of it as goes out before the connection ends."""
        if self._ended:
            return
        left = cut.at_byte - self._event_bytes
        self._event_bytes += len(event)
        self._write(b"%x\r\n%b" % (len(event), event[:left]))
        if left <= len(event):
            self.cut(rst=cut.rst)
        else:
            self._write(b"\r\n")

    def _flush_rest(self) -> None:
        rest, self._split_rest = self._split_rest, b""
        if rest:
            self._write(rest)


def reset_on_close(transport: asyncio.Transport) -> None:
    """Make the coming close of a connection a reset."""
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def second_answer() -> bytes:
    """A complete answer that nobody asked for."""
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(_SECOND_BODY)}\r\ncontent-type: {JSON}\r\n\r\n"
    return head.encode() + _SECOND_BODY
