"""Where the members that penstock reads stand in a JSON object, so that edits can replace them.

Readers of JSON differ in which of two members of one name they take, and some refuse the body. So a
body that has one of these names twice is refused.
"""

import re
from collections.abc import Mapping, Sequence
from json import JSONDecoder
from typing import Final

import msgspec

from penstock.balancing.forms import MalformedAsk

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
