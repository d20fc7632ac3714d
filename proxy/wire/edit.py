"""Edits of a request body: each sets a top-level key, and the bytes of all other values stay.

The keys are added at the end, so nothing has to be decoded or searched. Of equal keys the last one
counts, for vLLM as for all Python readers of JSON. The body itself is not copied for an edit: only
its ending is replaced, when it is written to a backend.
"""

from typing import Final

# A top-level key, and the JSON value that it is set to.
Edit = tuple[bytes, bytes]
Edits = tuple[Edit, ...]
# From where on a body is replaced, and by what. A plain tuple: most requests have one.
Ending = tuple[int, bytes]
_LOOKED_BYTES: Final = 64


# What is written of a body: itself or a part of it, its ending, and what comes before it.
Framed = tuple[bytes | memoryview, Ending | None, bytes]


def framed(body: bytes, beginning: Ending | None, edited: Ending | None) -> Framed:
    """`body` with its beginning and its ending replaced. None: as they are."""
    if beginning is None:
        return body, edited, b""
    at, added = beginning
    if edited is not None:
        edited = edited[0] - at, edited[1]
    return memoryview(body)[at:], edited, added


def with_defaults(body: bytes, defaults: Edits) -> Ending:
    """The beginning that gives `body`, an object, these members where it has none of the name.

    Up to where it is replaced, and by what. They come first, so any of its own that has the name
    counts.
    """
    at = body.index(b"{") + 1
    empty = body[at : at + _LOOKED_BYTES].lstrip().startswith(b"}")
    added = b",".join([b'"%b":%b' % each for each in defaults])
    return at, b"{" + added + (b"" if empty else b",")


def ending(body: bytes, edits: Edits) -> Ending | None:
    """The ending that applies `edits` to `body`, an object that is not empty. None: no edits."""
    if not edits:
        return None
    added = b""
    for edit in edits:
        added += b',"%b":%b' % edit
    return body.rindex(b"}"), added + b"}"
