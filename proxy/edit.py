"""Edits of a request body: top-level keys change, every other value keeps its bytes."""

from collections.abc import Mapping
from typing import Final

import msgspec

from balancing.ask import Ask

_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def with_keys(body: bytes, keys: Mapping[str, bytes]) -> bytes:
    """`body`, a JSON object, with the given keys set to the given JSON values."""
    fields = _object.decode(body)
    fields.update((key, msgspec.Raw(value)) for key, value in keys.items())
    return msgspec.json.encode(fields)


def with_usage_asked(body: bytes, ask: Ask) -> bytes:
    """`body` with `stream_options.include_usage`, merged into the client's own options.

    Options that are no object stay as they are: the backend judges them.
    """
    options = ask.stream_options
    if options in (b"", b"null"):
        merged = b'{"include_usage":true}'
    elif options.startswith(b"{"):
        merged = with_keys(options, {"include_usage": b"true"})
    else:
        return body
    return with_keys(body, {"stream_options": merged})
