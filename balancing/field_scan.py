"""Finds the fields of a body and where they stand, in one pass of compiled code if there is any.

What is not plainly right for that is read without it (`members.py`, msgspec), which tells what is
wrong.
"""

from typing import Any, Final

import msgspec

from penstock.balancing import native
from penstock.balancing.field_values import UNREADABLE
from penstock.balancing.fields import CLIPPED_BYTES, READ_WHOLE, Fields
from penstock.balancing.forms import MalformedAsk
from penstock.balancing.members import NoObject, Places, PlacesFound, members, names_of
from penstock.balancing.outline import LARGE_BYTES, SLICE_BYTES, Steps, copied

NO_OBJECT: Final = "The request body must be one valid JSON object."
# The most that is read at once, in tokens of JSON, or one MiB of text: about a millisecond. A body
# that is read in one turn has no more.
STEP_TOKENS: Final = LARGE_BYTES
# Below this size msgspec makes the fields faster.
DECODED_BYTES_MAX: Final = 4_096
# As many keys as one scan takes.
KEYS_MAX: Final = 128
# Large values of these are not copied: they are views of the body.
_VIEWED: Final = frozenset({"messages", "system", "tools", "instructions", "input", "prompt"})

# The fields, whether media may be named anywhere in the body, and where the fields stand.
Found = tuple[Fields, bool, Places]


class FieldScan:
    """Scans bodies for the fields of one struct, all of which are raw."""

    def __init__(self, decoder: "msgspec.json.Decoder[Fields]") -> None:
        self._decoder = decoder
        struct: Any = decoder.type  # versions of msgspec differ in its type
        self._names = names_of(struct)
        self._keys = tuple(self._names)
        self._scans = native.AVAILABLE and len(self._keys) <= KEYS_MAX

    def glance(self, body: bytes, *, views: bool) -> Found | None:
        """Read a small body in one turn. None: it takes longer, or something is not right.

        `views`: large parts of the prompt become views of the body. Raises MalformedAsk.
        """
        if not self._scans:
            return self._decoded(body)
        scan = native.Scan(body, self._keys)
        if scan.go_on(STEP_TOKENS) != native.WHOLE:
            return None
        places = scan.places()
        if len(body) <= DECODED_BYTES_MAX:
            return self._decoder.decode(body), scan.names_media(), places
        fields, large = self._fields(body, places, views=views)
        for name, view in large:
            setattr(fields, name, bytes(view))
        return fields, scan.names_media(), places

    def steps(self, body: bytes, *, views: bool) -> Steps[Found]:
        """Read a body of any size. Raises MalformedAsk."""
        if self._scans:
            scan = native.Scan(body, self._keys)
            while (outcome := scan.go_on(STEP_TOKENS)) == native.MORE:
                yield
            if outcome == native.WHOLE:
                places = scan.places()
                fields, large = self._fields(body, places, views=views)
                for name, view in large:
                    setattr(fields, name, (yield from copied(view)))
                return fields, scan.names_media(), places
        if len(body) <= LARGE_BYTES:
            if len(body) > SLICE_BYTES:
                yield
            return self._decoded(body)
        noted = PlacesFound(self._names)
        try:
            fields = yield from members(body, self._decoder, noted=noted)
        except (*UNREADABLE, RecursionError, NoObject):
            raise MalformedAsk(NO_OBJECT) from None
        return fields, True, noted.places

    def _decoded(self, body: bytes) -> Found:
        noted = PlacesFound(self._names)
        try:
            fields = self._decoder.decode(body)
            begin = body.index(b"{") + 1
            noted.add_all(body[begin : body.rindex(b"}")], begin, fields)
        except (*UNREADABLE, RecursionError):
            raise MalformedAsk(NO_OBJECT) from None
        return fields, True, noted.places

    def _fields(
        self, body: bytes, places: Places, *, views: bool
    ) -> tuple[Fields, list[tuple[str, memoryview]]]:
        """The fields, and those values that are still to be copied."""
        fields, large = self._decoder.type(), []
        for key, begin, end in places:
            name = self._names[key]
            if end - begin <= CLIPPED_BYTES or name not in READ_WHOLE:
                # Bytes in place of a Raw, because a Raw would be copied at every look.
                setattr(fields, name, body[begin : min(end, begin + CLIPPED_BYTES)])
                continue
            view = memoryview(body)[begin:end]
            if views and name in _VIEWED:
                setattr(fields, name, view)
            else:
                large.append((name, view))
        return fields, large
