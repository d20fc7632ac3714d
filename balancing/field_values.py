"""Reads the values of fields that decide a charge, a limit or a route.

They take the plain forms of JSON alone. Backends also take others, such as "64" and "yes": those
are refused here, because nobody could tell what each version of them reads.
"""

from math import nan
from typing import Final

import msgspec

from penstock.balancing.forms import MalformedAsk

NO_FIELD: Final = msgspec.Raw()
# msgspec raises DecodeError for bytes that are not JSON, UnicodeDecodeError for bad UTF-8.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError)
# Longer than any name of a model or id of a response. A longer one is cut to this.
NAME_BYTES_MAX: Final = 4_096
_integer: Final = msgspec.json.Decoder(int)
_float: Final = msgspec.json.Decoder(float)
_string: Final = msgspec.json.Decoder(str)
_FALSE: Final = (b"false", b"null")


def integer(name: str, raw: msgspec.Raw) -> int | None:
    """A whole number, also `16.0` and `4e3`. None: not given, or null. Raises MalformedAsk."""
    if raw is NO_FIELD:
        return None
    try:
        return _integer.decode(raw)
    except msgspec.DecodeError:
        if bytes(raw) == b"null":
            return None
    try:
        number = _float.decode(raw)
    except msgspec.DecodeError:
        number = nan
    if not number.is_integer():
        raise MalformedAsk(f"`{name}` must be a whole number.")
    return int(number)


def boolean(name: str, raw: msgspec.Raw) -> bool:
    """True or false, which null also is. Raises MalformedAsk."""
    if raw is NO_FIELD:
        return False
    value = bytes(raw)
    if value == b"true":
        return True
    if value not in _FALSE:
        raise MalformedAsk(f"`{name}` must be true or false.")
    return False


def string(name: str, raw: msgspec.Raw) -> str | None:
    """A string. None: not given, or null. Raises MalformedAsk."""
    if raw is NO_FIELD:
        return None
    value = bytes(raw)
    if value == b"null":
        return None
    if len(value) > NAME_BYTES_MAX and value.startswith(b'"'):
        return value[1:NAME_BYTES_MAX].decode("utf-8", "replace")  # nobody knows it
    try:
        return _string.decode(value)
    except UNREADABLE:
        raise MalformedAsk(f"`{name}` must be a string.") from None
