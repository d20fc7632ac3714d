"""The `stream_options` that make a backend report usage when its client did not ask for it.

Metrics and estimators need the backend's usage. The relay hides its chunk from a client that did
not ask for it. If the client leaves it open (options without `include_usage`), vLLM's own default
decides, which differs between versions. In this case nothing is changed. Options that the backend
would refuse are not changed either.
"""

from typing import Final

import msgspec

from penstock.balancing.fields import NO_FIELD, UNREADABLE, StreamOptions, truth
from penstock.balancing.members import NoObject, members
from penstock.balancing.outline import Steps

_ASKED: Final = b'{"include_usage":true}'
_ASKED_ONCE: Final = b'{"include_usage":true,"continuous_usage_stats":false}'

# Longer ones come from no honest client. Other keys in them, which no backend knows, are dropped.
DECODED_BYTES_MAX: Final = 1_024

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_options = msgspec.json.Decoder(StreamOptions)


def usage_options(raw: msgspec.Raw) -> Steps[bytes]:
    """The options to send in place of the client's. Empty: do not change them."""
    given = bytes(raw)
    if given in (b"", b"null"):
        return _ASKED
    if not given.startswith(b"{"):
        return b""
    try:
        if len(given) <= DECODED_BYTES_MAX:
            options = _options.decode(given)
        else:
            options = yield from members(given, _options)
    except (*UNREADABLE, RecursionError, NoObject):
        return b""
    wanted = options.include_usage
    if wanted is NO_FIELD or (bytes(wanted) != b"null" and truth(wanted) is not False):
        return b""
    # Usage in every chunk could not be hidden.
    continuous = options.continuous_usage_stats
    every = continuous is not NO_FIELD
    if every and bytes(continuous) != b"null" and truth(continuous) is None:
        return b""  # no backend takes this as a boolean: the backend shall say so
    if len(given) <= DECODED_BYTES_MAX:
        try:
            fields = _object.decode(given)
        except UNREADABLE:
            return b""
        fields["include_usage"] = msgspec.Raw(b"true")
        if every:
            fields["continuous_usage_stats"] = msgspec.Raw(b"false")
        return msgspec.json.encode(fields)
    return _ASKED_ONCE if every else _ASKED
