"""Looks into JSON that passes in pieces, because it is too large to hold.

`JsonEnd` finds its end. An answer without a length lasts until the connection closes, and an early
close looks the same. The brackets outside strings tell the difference. `JsonObject` finds one
object by its name and its depth: token counts, which stand before or behind any amount of text.
"""

import re
from json import JSONDecoder
from typing import Final

# No token counts are longer.
OBJECT_BYTES_MAX: Final = 4_096
# A name and the beginning of its value are found if they are no longer than that.
_NAME_BYTES: Final = 64
_SLICE_BYTES: Final = 65_536  # so much at once is ten times as fast as a million bytes
# So many of that name are looked at in one slice, the last ones. Others would take milliseconds.
_LOOKS_MAX: Final = 32
_VALUE: Final = re.compile(rb"\s{0,8}:\s{0,8}(?=\{)")
_json: Final = JSONDecoder()
_NOT_TOLD: Final = bytes(set(range(256)) - set(b'"[]{}'))


class JsonEnd:
    """Counts the open brackets."""

    __slots__ = ("_depth", "_escaped", "_quoted")

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False  # the last piece ended inside an escape

    def feed(self, piece: bytes) -> None:
        if self._escaped:
            piece = piece[1:]
        self._escaped = False
        if b"\\" in piece:
            # Other escapes hold no character that counts.
            piece = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__")
            self._escaped = piece.endswith(b"\\")
        parts = piece.translate(None, _NOT_TOLD).split(b'"')
        plain = b"".join(parts[self._quoted :: 2])
        self._quoted ^= len(parts) % 2 == 0
        opened = plain.count(b"[") + plain.count(b"{")
        self._depth += 2 * opened - len(plain)

    @property
    def reached(self) -> bool:
        """Whether everything that was opened is closed."""
        return self.inside(0)

    def inside(self, depth: int) -> bool:
        """Whether `depth` brackets are open here, outside a string."""
        return self._depth == depth and not self._quoted


class JsonObject:
    """The last object of that name, as a member of an object that is `depth` brackets deep.

    A text cannot look like it: quotes inside strings are escaped.
    """

    __slots__ = ("_before", "_depth", "_found", "_name", "_rest")

    def __init__(self, name: bytes, depth: int) -> None:
        self._name = b'"%b"' % name
        self._depth = depth
        self._before = JsonEnd()  # has what came before `_rest`
        self._rest = b""
        self._found = b""  # from its beginning on

    def feed(self, piece: bytes) -> None:
        if self._found and len(self._found) < OBJECT_BYTES_MAX:
            self._found += piece[: OBJECT_BYTES_MAX - len(self._found)]
        for begin in range(0, len(piece), _SLICE_BYTES):
            self._search(self._rest + piece[begin : begin + _SLICE_BYTES])

    def _search(self, text: bytes) -> None:
        begins: list[int] = []
        at = len(text)
        for _ in range(_LOOKS_MAX):
            at = text.rfind(self._name, 0, at)
            if at < 0:
                break
            if (value := _VALUE.match(text, at + len(self._name))) is not None:
                begins.append(value.end())
        done = 0
        for at in reversed(begins):
            self._before.feed(text[done:at])
            done = at
            if self._before.inside(self._depth):
                self._found = text[at : at + OBJECT_BYTES_MAX]
        until = max(done, len(text) - _NAME_BYTES)
        self._before.feed(text[done:until])
        self._rest = text[until:]

    @property
    def text(self) -> bytes:
        """The whole object. Empty if none came, or it is too long."""
        try:
            found = self._found.decode("utf-8", "replace")
            return found[: _json.raw_decode(found)[1]].encode()
        except ValueError:
            return b""
