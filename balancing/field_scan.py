"""Finds the fields of a body in one pass, by compiled code where there is some.

What is not plainly right is left to others (`members.py`, msgspec), which tell what is wrong.
"""

from typing import Final

import msgspec

from penstock.balancing import native
from penstock.balancing.fields import CLIPPED_BYTES, READ_WHOLE, Fields
from penstock.balancing.outline import LARGE_BYTES, Steps, copied

# Below this size msgspec is as cheap.
SCANNED_BYTES_MIN: Final = 4_096
# The most that is read at once, in tokens of JSON, or one MiB of text: about a millisecond. A body
# that is read in one turn has no more.
STEP_TOKENS: Final = LARGE_BYTES
# As many keys as one scan takes.
KEYS_MAX: Final = 48
# Large values of these are not copied: they are views of the body.
_VIEWED: Final = frozenset({"messages", "system", "tools", "instructions", "input", "prompt"})

# The fields, and whether media are named anywhere in the body.
Found = tuple[Fields, bool]


class FieldScan:
    """Scans bodies for the fields of one struct, all of which are raw."""

    __slots__ = ("_keys", "_names", "_struct")

    def __init__(self, struct: type[Fields]) -> None:
        fields = msgspec.structs.fields(struct)
        self._struct = struct
        self._names = [field.name for field in fields]
        self._keys = tuple([field.encode_name.encode() for field in fields])

    def takes(self, body: bytes) -> bool:
        """Whether a scan of it is possible and pays."""
        return native.AVAILABLE and len(body) > SCANNED_BYTES_MIN and len(self._keys) <= KEYS_MAX

    def glance(self, body: bytes, *, views: bool) -> Found | None:
        """Scan a small body in one turn. None: it takes longer, or something is not right.

        `views`: large parts of the prompt become views of the body.
        """
        scan = native.Scan(body, self._keys)
        if scan.go_on(STEP_TOKENS) != native.WHOLE:
            return None
        fields, large = self._fields(body, scan, views=views)
        for name, view in large:
            setattr(fields, name, bytes(view))
        return fields, scan.names_media()

    def steps(self, body: bytes, *, views: bool) -> Steps[Found | None]:
        """Scan a body of any size. None: something is not right."""
        scan = native.Scan(body, self._keys)
        while (outcome := scan.go_on(STEP_TOKENS)) == native.MORE:
            yield
        if outcome != native.WHOLE:
            return None
        fields, large = self._fields(body, scan, views=views)
        for name, view in large:
            setattr(fields, name, (yield from copied(view)))
        return fields, scan.names_media()

    def _fields(
        self, body: bytes, scan: "native.Scan", *, views: bool
    ) -> tuple[Fields, list[tuple[str, memoryview]]]:
        """The fields, and those values that are still to be copied."""
        fields, large = self._struct(), []
        for number, begin, end in scan.spans():
            name = self._names[number]
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
