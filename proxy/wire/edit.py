"""Edits of a request body: each sets a top-level member, and the bytes of all other values stay.

A value is replaced where it stands, and a member that the body does not have is added at its end.
So an edit never makes two members of one name, which some readers of JSON refuse. The body itself
is not copied: what is between the edits is written to a backend as it is.
"""

import re
from typing import Final

from penstock.balancing.places import Places, span_of

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
