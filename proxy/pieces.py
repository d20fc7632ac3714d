"""A large body on its way to a backend: a piece a turn of the loop, none while it takes no more.

Written at once it would hold the loop for as long as the backend reads: the kernel takes what
fits, and the other side makes room meanwhile. Nor is it copied whole for an edit.
"""

import asyncio
from typing import Final

from proxy.edit import Edit

SMALL_BYTES: Final = 65_536
PIECE_BYTES: Final = 262_144


class Pieces:
    """What is left of one body; `edit` is how it ends."""

    __slots__ = ("_at", "_body", "_edit", "_end", "_loop", "_paused", "_transport", "_turn")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        body: bytes,
        edit: Edit | None,
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._body = body
        self._edit = edit
        self._at = 0
        self._end = len(body) if edit is None else edit.at
        self._paused = False
        self._turn: asyncio.Handle | None = None

    @property
    def left(self) -> bool:
        """Whether any of it is still to be written."""
        return self._at < self._end

    def write_on(self) -> None:
        """Write the next piece, and more in turns to come."""
        self._turn = None
        if not self.left or self._transport.is_closing():
            return
        at, self._at = self._at, min(self._at + PIECE_BYTES, self._end)
        piece = self._body[at : self._at]
        if self._at == self._end:
            self._transport.write(piece if self._edit is None else piece + self._edit.ending)
            self._body = b""
            return
        self._transport.write(piece)
        if not self._paused:
            self._turn = self._loop.call_soon(self.write_on)

    def pause(self) -> None:
        """The backend takes less than it is sent."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._turn is None:
            self.write_on()

    def drop(self) -> None:
        """Nothing more is written."""
        self._at = self._end
        self._body = b""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None


def write(
    loop: asyncio.AbstractEventLoop,
    transport: asyncio.Transport,
    head: bytes,
    body: bytes,
    edit: Edit | None,
) -> Pieces | None:
    """Write a request; what is left of its body writes itself. An edited body is a large one."""
    if len(body) <= SMALL_BYTES:  # one write and one segment
        transport.write(head + body)
        return None
    transport.write(head)
    if len(body) <= PIECE_BYTES and edit is None:
        transport.write(body)  # no copy
        return None
    pieces = Pieces(loop, transport, body, edit)
    pieces.write_on()
    return pieces
