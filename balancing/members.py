"""Reads the top-level members of a large JSON object, a slice at a time.

It finds what decoding the whole object would find. Of equal keys the last one counts. Slices of
small members are decoded. For a large member only the key is read, and its value is passed over by
its brackets and quotes. So a fault inside a large value is left for the backend to report.

Where the members that penstock reads stand in a JSON object, so that edits can replace them.

Readers of JSON differ in which of two members of one name they take, and some refuse the body. So a
body that has one of these names twice is refused.
"""

import re
from collections.abc import Mapping, Sequence
from json import JSONDecoder
from typing import Final, TypeVar

import msgspec

from penstock.balancing.field_values import NO_FIELD, UNREADABLE
from penstock.balancing.fields import CLIPPED_BYTES, READ_WHOLE
from penstock.balancing.forms import MalformedAsk
from penstock.balancing.outline import (
    BLANKS,
    SLICE_BYTES,
    Brackets,
    Steps,
    copied,
    depth_after,
    long_run_end,
    outline,
    past_blanks,
    slice_end,
)

# A name, and where its value begins and ends in the body.
Place = tuple[bytes, int, int]
Places = Sequence[Place]

_STRING: Final = rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_KEY: Final = re.compile(rb"[ \t\r\n,]*+" + _STRING + rb"[ \t\r\n]*+:[ \t\r\n]*+")
_PLAIN: Final = re.compile(_STRING + rb"|[^][{}\", \t\r\n]++")
_AFTER: Final = (b"", b",", b" ", b"\t", b"\r", b"\n")
_name: Final = msgspec.json.Decoder(str)
# Only its end is wanted of a value: no numbers are made, and no dictionaries.
_value: Final = JSONDecoder(parse_int=len, parse_float=len, object_pairs_hook=len).raw_decode


class GivenTwice(MalformedAsk):
    """A member that penstock reads is in the body twice."""

    def __init__(self, name: str) -> None:
        super().__init__(f"`{name}` is given twice in the request body; give it once.")


def span_of(places: Places, name: bytes) -> tuple[int, int] | None:
    """Where the value of this member begins and ends. None: the body has none."""
    for known, begin, end in places:
        if known == name:
            return begin, end
    return None


def names_of(struct: type[msgspec.Struct]) -> dict[bytes, str]:
    """The names of the members that are read into this struct, and its attributes."""
    fields = msgspec.structs.fields(struct)
    return {field.encode_name.encode(): field.name for field in fields}


class PlacesFound:
    """Collects where the members with these names are. By them, attributes of what is read."""

    __slots__ = ("_names", "_noted", "places")

    def __init__(self, names: Mapping[bytes, str]) -> None:
        self._names = names
        self._noted: set[bytes] = set()
        self.places: list[Place] = []

    def add(self, name: bytes, begin: int, end: int) -> None:
        """Note one member. Raises GivenTwice."""
        if name not in self._names:
            return
        if name in self._noted:
            raise GivenTwice(name.decode())
        self._noted.add(name)
        self.places.append((name, begin, end))

    def add_all(self, piece: bytes, offset: int, fields: msgspec.Struct) -> None:
        """Note the members of a valid piece of the body, of which `fields` were read.

        `offset`: where it begins in the body. Raises GivenTwice.
        """
        characters = ""  # one for each byte, if they are needed
        at = 0
        while (key := _KEY.match(piece, at)) is not None:
            name, at = key[1], key.end()
            if b"\\" in name:
                name = _name.decode(b'"%b"' % name).encode()
            attribute = self._names.get(name)
            read = bytes(getattr(fields, attribute)) if attribute is not None else b""
            end = at + len(read)
            if not read or not piece.startswith(read, at) or piece[end : end + 1] not in _AFTER:
                plain = _PLAIN.match(piece, at)
                if plain is None:
                    characters = characters or piece.decode("latin-1")
                    _, end = _value(characters, at)
                else:
                    end = plain.end()
            if attribute is not None:
                self.add(name, offset + at, offset + end)
            at = end


S = TypeVar("S", bound=msgspec.Struct)

# How many brackets to look back for a comma at the top level: in valid JSON two are enough.
_LOOKS_BACK: Final = 3

_key: Final = msgspec.json.Decoder(str)


class NoObject(ValueError):
    """The text is not a JSON object, as far as it was read."""


def members(
    text: bytes,
    decoder: "msgspec.json.Decoder[S]",
    read_whole: frozenset[str] = READ_WHOLE,
    *,
    copies: bool = True,
    noted: PlacesFound | None = None,
) -> Steps[S]:
    """What `decoder`, whose fields are all raw, would make of the object. Raises NoObject.

    `read_whole`: the fields whose values are kept whole. Others are cut to CLIPPED_BYTES. Without
    `copies` large values are views of the text, for callers with very many texts. `noted` is told
    where each member stands, and raises GivenTwice.
    """
    found = _decoded(decoder, b"")
    at = yield from past_blanks(text, 0)
    if text[at : at + 1] != b"{":
        raise NoObject
    whole = False
    while not whole:
        at = yield from past_blanks(text, at + 1)
        if text[at : at + 1] not in (b'"', b"}"):
            raise NoObject
        length, whole = _small_members(text[at : slice_end(text, at)])
        if length:
            piece = text[at : at + length]
            small = _decoded(decoder, piece)
            _merge(found, small)
            if noted is not None:
                noted.add_all(piece, at, small)
            at += length
        elif not whole:
            yield
            at = yield from _large_member(text, at, found, read_whole, copies, noted)
            whole = text[at : at + 1] == b"}"
        if text[at : at + 1] != (b"}" if whole else b","):
            raise NoObject
        if not whole:
            yield
    if (yield from past_blanks(text, at + 1)) < len(text):
        raise NoObject
    return found


def _merge(found: S, later: S) -> None:
    for field in msgspec.structs.fields(found):
        value: msgspec.Raw = getattr(later, field.name)
        if value is not NO_FIELD:
            setattr(found, field.name, value)


def _large_member(
    text: bytes,
    at: int,
    found: S,
    read_whole: frozenset[str],
    copies: bool,
    noted: PlacesFound | None,
) -> Steps[int]:
    """Read the one member that begins there. Returns where it ends."""
    key, at = yield from _key_of(text, at)
    end = yield from _value_end(text, at)
    for field in msgspec.structs.fields(found):
        if field.encode_name == key:
            whole = field.encode_name in read_whole
            value_end = yield from _without_end(text, at, end)
            if noted is not None:
                noted.add(field.encode_name.encode(), at, value_end)
            until = value_end if whole else min(value_end, at + CLIPPED_BYTES)
            # Bytes in place of a Raw, because a Raw would be copied at every look.
            view = memoryview(text)[at:until]
            value = (yield from copied(view)) if copies else view
            setattr(found, field.name, value)
    return end


def _without_end(text: bytes, at: int, end: int) -> Steps[int]:
    """Where the value ends, without the blanks after it."""
    while end > at and text[end - 1] in BLANKS:
        piece = text[max(at, end - SLICE_BYTES) : end]
        left = piece.rstrip(BLANKS)
        end -= len(piece) - len(left)
        if not left:
            yield
    return end


def _decoded(decoder: "msgspec.json.Decoder[S]", members_: bytes) -> S:
    try:
        return decoder.decode(b"{%b}" % members_)
    except (*UNREADABLE, RecursionError):
        raise NoObject from None


def _small_members(piece: bytes) -> tuple[int, bool]:
    """How far whole members reach in a slice that begins with one; whether the object ends."""
    outlined, _ = outline(piece, inside=False)
    brackets = Brackets(outlined, 0)
    depths = brackets.depths
    if -1 in depths:
        return brackets.after(depths.index(-1)) - 1, True
    number = len(depths)
    for _ in range(_LOOKS_BACK):
        number = _last(depths, number)
        if number < 0:
            break
        comma = brackets.comma_at(number, last=True)
        if comma >= 0:
            return comma, False
    return 0, False


def _last(depths: list[int], before: int) -> int:
    """The last place before `before` with depth 0. -1 if there is none."""
    try:
        return before - 1 - depths[:before][::-1].index(0)
    except ValueError:
        return -1


def _key_of(text: bytes, at: int) -> Steps[tuple[str | None, int]]:
    """The key of the member that begins there, and where its value begins.

    A key longer than a slice becomes None: nobody looks for it.
    """
    at += 1
    key: str | None = None
    quote = _quote_in(text[at : slice_end(text, at)])
    if quote >= 0:
        end = at + quote + 1
        try:
            key = _key.decode(text[at - 1 : end])
        except UNREADABLE:
            raise NoObject from None
    else:
        end = yield from _string_end(text, at)
    end = yield from past_blanks(text, end)
    if text[end : end + 1] != b":":
        raise NoObject
    return key, (yield from past_blanks(text, end + 1))


def _quote_in(piece: bytes) -> int:
    """Where the first quote without a backslash is. -1 if there is none."""
    if b"\\" in piece:
        piece = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    return piece.find(b'"')


def _string_end(text: bytes, at: int) -> Steps[int]:
    """The position after the quote that ends the string around `at`."""
    while at < len(text):
        end = slice_end(text, at)
        quote = _quote_in(text[at:end])
        if quote >= 0:
            return at + quote + 1
        at = end
        yield
    raise NoObject


def _value_end(text: bytes, at: int) -> Steps[int]:
    """The position of the comma or bracket after the value that begins there."""
    depth, inside = 0, False
    while at < len(text):
        end = slice_end(text, at)
        if inside and (until := long_run_end(text, at)) > end:  # usually a long text or data
            at = until
            yield
            continue
        outlined, inside = outline(text[at:end], inside)
        deeper = depth_after(outlined, depth)
        if deeper is None:
            brackets = Brackets(outlined, depth)
            depths = brackets.depths
            number = -1
            for _ in range(_LOOKS_BACK):
                try:
                    number = depths.index(0, number + 1)
                except ValueError:
                    break
                comma = brackets.comma_at(number)
                if comma >= 0:
                    return at + comma
                if number + 1 < len(depths) and depths[number + 1] == -1:
                    return at + brackets.after(number + 1) - 1
            else:
                raise NoObject
            deeper = depths[-1]
        depth = deeper
        at = end
        yield
    raise NoObject
