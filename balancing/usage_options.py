"""The `stream_options` that make a backend report usage when its client did not ask for it.

Metrics, estimators and budgets need the backend's usage. The relay hides its chunk from a client
that did not ask for it.
"""

from typing import Final

import msgspec

from penstock.balancing.field_values import UNREADABLE, boolean
from penstock.balancing.fields import StreamOptions
from penstock.balancing.forms import MalformedAsk

_ASKED: Final = b'{"include_usage":true}'
# Longer ones come from no honest client.
OPTIONS_BYTES_MAX: Final = 1_024
ODD_OPTIONS: Final = f"`stream_options` must be an object of at most {OPTIONS_BYTES_MAX} bytes."

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_options = msgspec.json.Decoder(StreamOptions)


def usage_options(raw: msgspec.Raw) -> bytes:
    """The options to send in place of the client's. Empty: it asks for usage itself.

    Raises MalformedAsk.
    """
    given = bytes(raw)
    if given in (b"", b"null"):
        return _ASKED
    try:
        options = _options.decode(given if len(given) <= OPTIONS_BYTES_MAX else b"")
        fields = _object.decode(given)
    except (*UNREADABLE, RecursionError):
        raise MalformedAsk(ODD_OPTIONS) from None
    continuous = boolean("stream_options.continuous_usage_stats", options.continuous_usage_stats)
    if boolean("stream_options.include_usage", options.include_usage):
        return b""
    fields["include_usage"] = msgspec.Raw(b"true")
    if continuous:  # usage in every chunk could not be hidden
        fields["continuous_usage_stats"] = msgspec.Raw(b"false")
    return msgspec.json.encode(fields)
