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
from penstock.balancing.outline import Steps, finished

_ASKED: Final = b'{"include_usage":true}'
_ASKED_ONCE: Final = b'{"include_usage":true,"continuous_usage_stats":false}'

# Longer ones come from no honest client. Other keys in them, which no backend knows, are dropped.
DECODED_BYTES_MAX: Final = 1_024

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_options = msgspec.json.Decoder(StreamOptions)


def usage_options(raw: msgspec.Raw) -> bytes:
    """The options to send in place of the client's. Empty: do not change them."""
    given = bytes(raw)
    if given in (b"", b"null"):
        return _ASKED
    if len(given) > DECODED_BYTES_MAX:
        return finished(reading_usage_options(raw))
    if not given.startswith(b"{"):
        return b""
    try:
        options, fields = _options.decode(given), _object.decode(given)
    except (*UNREADABLE, RecursionError):
        return b""
    if _decided(options):
        return b""
    fields["include_usage"] = msgspec.Raw(b"true")
    if options.continuous_usage_stats is not NO_FIELD:  # usage in every chunk could not be hidden
        fields["continuous_usage_stats"] = msgspec.Raw(b"false")
    return msgspec.json.encode(fields)


def reading_usage_options(raw: msgspec.Raw) -> Steps[bytes]:
    """`usage_options` for options of any size."""
    given = bytes(raw)
    if len(given) <= DECODED_BYTES_MAX:
        return usage_options(raw)
    if not given.startswith(b"{"):
        return b""
    try:
        options = yield from members(given, _options)
    except (*UNREADABLE, RecursionError, NoObject):
        return b""
    if _decided(options):
        return b""
    return _ASKED if options.continuous_usage_stats is NO_FIELD else _ASKED_ONCE


def _decided(options: StreamOptions) -> bool:
    """Whether the client's options stay: they decide about usage, or a backend will refuse them."""
    wanted, continuous = options.include_usage, options.continuous_usage_stats
    if wanted is NO_FIELD or (bytes(wanted) != b"null" and truth(wanted) is not False):
        return True
    given = continuous is not NO_FIELD and bytes(continuous) != b"null"
    return given and truth(continuous) is None
