"""Edits of a request body: each sets a top-level member, and the bytes of all other values stay.

A value is replaced where it stands, and a member that the body does not have is added at its end.
So an edit never makes two members of one name, which some readers of JSON refuse. The body itself
is not copied: what is between the edits is written to a backend as it is.

Sends a large body to a backend by pieces, none while the backend takes no more.

A single write would block the loop for as long as the backend reads: the kernel takes what fits,
and the other side makes room meanwhile. So the pieces of all bodies share a moment of each turn
(`scheduler.py`), and clients take turns. With uvloop and without TLS nothing is copied, even with
edits: slices of the body are written together with what is before and after them.
"""

import asyncio
import re
from typing import Final

from penstock.balancing.members import Places, span_of
from penstock.proxy.wire.scheduler import Scheduler

# A top-level member, and the JSON value that it is set to. In a form: a field, and its text.
Edit = tuple[bytes, bytes]
Edits = tuple[Edit, ...]
# From where to where bytes of a body are replaced, and by what.
Splice = tuple[int, int, bytes]
Splices = tuple[Splice, ...]
_EMPTY: Final = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*\}")


def splices(body: bytes, edits: Edits, places: Places) -> Splices:
    """What to replace in `body` for these edits, in order. Of equal names the last edit counts."""
    if not edits:
        return ()
    found: list[Splice] = []
    added: list[bytes] = []
    for name, value in dict(edits).items():
        place = span_of(places, name)
        if place is not None:
            found.append((*place, value))
        else:
            added.append(b'"%b":%b' % (name, value))
    if added:
        end = body.rindex(b"}")
        comma = b"" if _EMPTY.match(body) else b","
        found.append((end, end, comma + b",".join(added)))
    return tuple(sorted(found))


def spliced_bytes(body: bytes, replaced: Splices) -> int:
    """The length of the body with its splices."""
    length_bytes = len(body)
    for begin, end, value in replaced:
        length_bytes += len(value) - (end - begin)
    return length_bytes


def parts_of(body: bytes, replaced: Splices) -> list[bytes | memoryview]:
    """What is written of the body: parts of it, and what stands between them instead."""
    if not replaced:
        return [body]
    parts: list[bytes | memoryview] = []
    view, at = memoryview(body), 0  # a slice of it is no copy
    for begin, end, value in replaced:
        parts += [view[at:begin], value]
        at = end
    return [*parts, view[at:]]


SMALL_BYTES: Final = 65_536
PIECE_BYTES: Final = 262_144


class Pieces:
    """The rest of one request, whose body has these edits."""

    def __init__(
        self,
        rota: Scheduler,
        party: str,
        transport: asyncio.Transport,
        head: bytes,
        body: bytes,
        replaced: Splices,
    ) -> None:
        """`party`: whose body it is."""
        self._rota = rota
        self._party = party
        self._transport = transport
        # asyncio's own `writelines`, from 3.12 on, does not end if the last part is empty. In some
        # versions it never pauses its protocol (CVE-2024-12254).
        self._joins = not _is_uvloop(type(rota.loop))
        self._head = head  # empty when it is written
        self._parts = [memoryview(part) for part in reversed(parts_of(body, replaced))]
        self._paused = False
        self._queued = False  # it waits for its next turn

    @property
    def left(self) -> bool:
        """Whether a part of it has still to be written."""
        return bool(self._parts)

    def begin(self) -> None:
        """Write the first piece now, if no others wait, and the rest in later turns."""
        if not len(self._rota):
            self._write_piece()
        self._go_on()

    def _go_on(self) -> None:
        if self.left and not self._paused and not self._queued:
            self._queued = True
            self._rota.add(self._party, self._step)

    def _step(self) -> bool:
        """Write a piece, unless nothing more may be written. True while more may be."""
        if self._transport.is_closing():
            self.drop()
        elif self.left and not self._paused:
            self._write_piece()
        self._queued = self.left and not self._paused
        return self._queued

    def _write_piece(self) -> None:
        written: list[bytes | memoryview] = [self._head]
        self._head = b""
        room_bytes = PIECE_BYTES
        while self._parts and room_bytes > 0:
            part = self._parts.pop()
            if len(part) > room_bytes:
                self._parts.append(part[room_bytes:])
                part = part[:room_bytes]
            room_bytes -= len(part)
            written.append(part)
        if self._joins:
            self._transport.write(b"".join(written))
        else:  # no copy
            self._transport.writelines(written)

    def pause(self) -> None:
        """The backend takes less than it is sent."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._go_on()

    def drop(self) -> None:
        self._parts = []


def _is_uvloop(kind: type) -> bool:
    """Whether a loop is uvloop's. The one that we run on is a class of ours, made of uvloop's."""
    return any(each.__module__.startswith("uvloop") for each in kind.__mro__)


def pieces_of(
    rota: Scheduler,
    party: str,
    transport: asyncio.Transport,
    head: bytes,
    body: bytes,
    replaced: Splices,
) -> Pieces | None:
    """Write a small request now and return None. Return the pieces of a large one, not begun."""
    if len(body) <= SMALL_BYTES:  # one write and one segment
        if not replaced:
            transport.write(head + body)
        else:
            transport.write(b"".join([head, *parts_of(body, replaced)]))
        return None
    return Pieces(rota, party, transport, head, body, replaced)
