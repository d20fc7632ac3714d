"""Edits of a request body: a top-level key is set, every other value keeps its bytes.

The key is added at the end, so that nothing need be decoded or looked for: of equal keys the last
counts, for vLLM as for all who read JSON with Python. A large body is not copied for it.
"""

from typing import NamedTuple


class Edit(NamedTuple):
    """From `at` on the body is `ending`."""

    at: int
    ending: bytes


def key_added(body: bytes, key: bytes, value: bytes) -> Edit:
    """How a key of `body`, a JSON object that is not empty, is set to a JSON value."""
    return Edit(body.rindex(b"}"), b',"%b":%b}' % (key, value))


def with_key(body: bytes, key: bytes, value: bytes) -> bytes:
    """`body` with that edit."""
    return b'%b,"%b":%b}' % (body[: body.rindex(b"}")], key, value)
