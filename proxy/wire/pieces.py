"""Sends a large body to a backend: one piece in a turn of the loop, none while it takes no more.

A single write would block the loop for as long as the backend reads: the kernel takes what fits,
and the other side makes room meanwhile. Nothing is copied, not even for edits: slices of the body
are written together with what is before and after them.
"""

import asyncio
from typing import Final

from penstock.proxy.wire.edit import Ending

SMALL_BYTES: Final = 65_536
PIECE_BYTES: Final = 262_144
_EMPTY: Final = memoryview(b"")


class Pieces:
    """The rest of one request. `ending` has the edits of its body."""

    __slots__ = (
        "_added",
        "_at",
        "_end",
        "_head",
        "_joins",
        "_loop",
        "_paused",
        "_transport",
        "_turn",
        "_view",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        head: bytes,
        body: bytes,
        ending: Ending | None,
    ) -> None:
        self._loop = loop
        # asyncio's own `writelines`, from 3.12 on, does not end if the last part is empty. In some
        # versions it never pauses its protocol (CVE-2024-12254).
        self._joins = not type(loop).__module__.startswith("uvloop")
        self._transport = transport
        self._head = head  # empty when it is written
        self._view = memoryview(body)  # a slice of it is no copy
        self._at = 0
        self._end, self._added = ending or (len(body), b"")
        self._paused = False
        self._turn: asyncio.Handle | None = None

    @property
    def left(self) -> bool:
        """Whether a part of it has still to be written."""
        return self._at < self._end

    def write_on(self) -> None:
        """Write the next piece now and the others in later turns."""
        self._turn = None
        if not self.left or self._transport.is_closing():
            return
        at, self._at = self._at, min(self._at + PIECE_BYTES, self._end)
        head, piece, self._head = self._head, self._view[at : self._at], b""
        if self._at == self._end:
            self._view = _EMPTY
            self._write((head, piece, self._added))
            return
        self._write((head, piece))
        if not self._paused:
            self._turn = self._loop.call_soon(self.write_on)

    def _write(self, parts: tuple[bytes | memoryview, ...]) -> None:
        if self._joins:
            self._transport.write(b"".join(parts))
        else:  # no copy
            self._transport.writelines(parts)

    def pause(self) -> None:
        """The backend takes less than it is sent."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._turn is None:
            self.write_on()

    def drop(self) -> None:
        """Write nothing more."""
        self._at = self._end
        self._view = _EMPTY
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None


def write(
    loop: asyncio.AbstractEventLoop,
    transport: asyncio.Transport,
    head: bytes,
    body: bytes,
    ending: Ending | None,
) -> Pieces | None:
    """Write a request with the edits of its body. The rest of a large one is written later."""
    if len(body) <= SMALL_BYTES:  # one write and one segment
        if ending is None:
            transport.write(head + body)
        else:
            transport.write(b"".join((head, body[: ending[0]], ending[1])))
        return None
    pieces = Pieces(loop, transport, head, body, ending)
    pieces.write_on()
    return pieces
