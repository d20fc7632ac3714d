"""`stream_options` with which a backend reports usage, where its client asked for none.

A backend's usage is what the accounts and estimators live on, and the relay hides its one chunk
from a client that did not ask. Where the client leaves it open (options without `include_usage`)
vLLM's own default decides, which is not the same in all versions: then nothing is changed, nor
where the backend would refuse the options.
"""

from typing import Final

import msgspec

from balancing.fields import NO_FIELD, UNREADABLE, StreamOptions, truth
from balancing.members import NoObject, members
from balancing.outline import Steps

_ASKED: Final = b'{"include_usage":true}'
_ASKED_ONCE: Final = b'{"include_usage":true,"continuous_usage_stats":false}'

# Longer ones are no client's of good will: what else they hold, and no backend knows, is left out.
DECODED_BYTES_MAX: Final = 1_024

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_options = msgspec.json.Decoder(StreamOptions)


def usage_options(raw: msgspec.Raw) -> Steps[bytes]:
    """The options to ask with in place of the client's; empty: leave them as they are."""
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
    # In every chunk it could not be hidden.
    continuous = options.continuous_usage_stats
    every = continuous is not NO_FIELD
    if every and bytes(continuous) != b"null" and truth(continuous) is None:
        return b""  # what no backend takes for a boolean: it is to say so
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
