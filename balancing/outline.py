"""Finds the structure of JSON text a slice at a time, with few calls over whole slices.

Decoding a body of 32 MiB in one call would block the loop for a third of a second, and a loop over
its bytes would be slower still. The functions here take a slice of at most SLICE_BYTES and cost
about a millisecond, whatever is in the slice. Readers of large bodies let others run between two
slices. Text that is not JSON gives some result and costs no more.
"""

from array import array
from collections.abc import Generator
from io import BytesIO
from itertools import accumulate
from typing import Final, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]

# Up to this size a body is read in one turn. The most expensive shapes decode at 10 ms/MiB.
LARGE_BYTES: Final = 262_144
SLICE_BYTES: Final = 16_384
# Counting bytes is a hundred times cheaper than finding structure.
COUNTED_BYTES: Final = 524_288
BLANKS: Final = b" \t\r\n"
BACKSLASH: Final = 92

_BRACKETS: Final = b"[]{}"
_NO_BRACKETS: Final = bytes(code for code in range(256) if code not in _BRACKETS)
# As signed bytes: 1 opens, -1 closes.
_DELTAS: Final = bytes.maketrans(_BRACKETS, b"\x01\xff\x01\xff")
_ONE_BRACKET: Final = bytes.maketrans(_BRACKETS, b"[[[[")


def finished(steps: Steps[T]) -> T:
    """Take all steps at once and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def slice_end(text: bytes, at: int) -> int:
    """Where the slice that begins at `at` ends: never between a backslash and its character."""
    end = min(at + SLICE_BYTES, len(text))
    if end < len(text) and text[end - 1] == BACKSLASH:
        piece = text[at:end]
        run = len(piece) - len(piece.rstrip(b"\\"))
        if run % 2 and run < len(piece):
            end -= 1
    return end


def long_run_end(text: bytes, at: int) -> int:
    """A later position in the string around `at`, or `at`. One search finds it.

    It is before the next quote, or COUNTED_BYTES further. After a backslash that is not certain.
    """
    quote = text.find(b'"', at, at + COUNTED_BYTES)
    until = quote if quote >= 0 else min(at + COUNTED_BYTES, len(text))
    return until if text[until - 1] != BACKSLASH else at


def outline(piece: bytes, inside: bool) -> tuple[bytes, bool]:
    """The piece with the content of its strings blanked, and whether it ends inside a string.

    `inside`: whether it begins inside a string.
    """
    if b"\\" in piece:
        piece = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    if b'"' not in piece:
        return (bytes(len(piece)) if inside else piece), inside
    pieces = piece.split(b'"')
    first = 0 if inside else 1
    pieces[first::2] = list(map(bytes, map(len, pieces[first::2])))
    return b"\0".join(pieces), inside ^ (len(pieces) % 2 == 0)


class Brackets:
    """The brackets of an outline, and the depth after each of them."""

    __slots__ = ("_marks", "_outline", "depths")

    def __init__(self, outlined: bytes, depth: int) -> None:
        self._outline = outlined
        self._marks = b""
        deltas = array("b", outlined.translate(_DELTAS, _NO_BRACKETS))
        self.depths: list[int] = list(accumulate(deltas, initial=depth))

    def after(self, number: int) -> int:
        """The position after the first `number` brackets."""
        if not number:
            return 0
        marks = self._marked()
        return len(marks) - len(marks.split(b"[", number)[-1])

    def comma_at(self, number: int, *, last: bool = False) -> int:
        """The first or last comma between this bracket and the next. -1 if there is none."""
        begin = self.after(number)
        end = self._marked().find(b"[", begin)
        find = self._outline.rfind if last else self._outline.find
        return find(b",", begin, end if end >= 0 else len(self._outline))

    def commas_at(self, depth: int) -> int:
        """How many commas are at this depth."""
        between = self._marked().split(b"[")
        pairs = zip(between, self.depths, strict=True)
        return sum([piece.count(b",") for piece, deep in pairs if deep == depth])

    def _marked(self) -> bytes:
        if not self._marks:
            self._marks = self._outline.translate(_ONE_BRACKET)
        return self._marks


def depth_after(outlined: bytes, depth: int) -> int | None:
    """The depth after a slice. None if the slice may come back to depth 0."""
    closing = outlined.count(b"]") + outlined.count(b"}")
    if closing >= depth:
        return None
    return depth - closing + outlined.count(b"[") + outlined.count(b"{")


def past_blanks(text: bytes, at: int) -> Steps[int]:
    """The first position from there that is not a blank."""
    while at < len(text) and text[at] in BLANKS:
        piece = text[at : at + SLICE_BYTES]
        left = piece.lstrip(BLANKS)
        at += len(piece) - len(left)
        if not left:
            yield
    return at


def strings_in(text: bytes) -> Steps[int]:
    """How many strings are in JSON text."""
    at = quotes = 0
    while at < len(text):
        end = slice_end(text, at)
        piece = text[at:end]
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        quotes += piece.count(b'"')
        at = end
        if at < len(text):
            yield
    return quotes // 2


def items_in(text: bytes) -> Steps[int]:
    """How many items a JSON list has. 1 for an empty list and for anything else."""
    if not text.startswith(b"[") or text[1:SLICE_BYTES].lstrip(BLANKS).startswith(b"]"):
        return 1
    at = depth = commas = 0
    inside = False
    while at < len(text):
        end = slice_end(text, at)
        outlined, inside = outline(text[at:end], inside)
        brackets = Brackets(outlined, depth)
        commas += brackets.commas_at(1)
        depth = brackets.depths[-1]
        at = end
        if at < len(text):
            yield
    return commas + 1


def count_in(text: bytes, byte: bytes) -> Steps[int]:
    """How often a byte is in the text."""
    count = 0
    for at in range(0, len(text), COUNTED_BYTES):
        count += text.count(byte, at, at + COUNTED_BYTES)
        if at + COUNTED_BYTES < len(text):
            yield
    return count


def copied(view: memoryview) -> Steps[bytes]:
    """A copy made piece by piece: new memory is what makes a large copy slow."""
    if len(view) <= COUNTED_BYTES:
        return bytes(view)
    copy = BytesIO()
    for at in range(0, len(view), COUNTED_BYTES):
        copy.write(view[at : at + COUNTED_BYTES])
        yield
    return copy.getvalue()  # not a copy: the collected bytes become the value


def without_blanks(text: bytes) -> Steps[bytes]:
    """JSON text without the blanks between its values."""
    kept: list[bytes] = []
    at, inside = 0, False
    while at < len(text):
        end = slice_end(text, at)
        if inside and (until := long_run_end(text, at)) > end:
            kept.append(text[at:until])
            at = until
            if at < len(text):
                yield
            continue
        piece = text[at:end]
        escaped = b"\\" in piece
        if escaped:  # by bytes that JSON text never holds
            piece = piece.replace(b"\\\\", b"\1\1").replace(b'\\"', b"\2\2")
        pieces = piece.split(b'"')
        first = 1 if inside else 0
        pieces[first::2] = [each.translate(None, BLANKS) for each in pieces[first::2]]
        inside ^= len(pieces) % 2 == 0
        piece = b'"'.join(pieces)
        if escaped:
            piece = piece.replace(b"\2\2", b'\\"').replace(b"\1\1", b"\\\\")
        kept.append(piece)
        at = end
        if at < len(text):
            yield
    return b"".join(kept)
