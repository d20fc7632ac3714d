"""How long a client will wait, as its own headers say it.

When the client will have gone, going on would only cost an engine. Two kinds:
`x-request-timeout` is for the whole request. The OpenAI and Anthropic SDKs send
their read timeout, the longest silence they bear (`x-stainless-read-timeout`,
`x-stainless-timeout`): it bounds the time until the answer begins, since from
then on comments and tokens break the silence. All are seconds.
"""

import re
from typing import Final

from proxy.heads import Headers, ResponseHead

# More than a day is no deadline, and shorter than this is no number of a client's.
SECONDS_MAX: Final = 86_400.0

_SECONDS: Final = re.compile(rb"[0-9]{1,6}(?:\.[0-9]{1,9})?")
_WHOLE: Final = b"x-request-timeout"
_SILENCE: Final = frozenset({b"x-stainless-read-timeout", b"x-stainless-timeout"})


def patience(headers: Headers) -> tuple[float, float]:
    """(seconds until the answer must have begun, seconds for all of it); 0.0 means not said.

    Of several the shortest counts; what is malformed, zero or beyond a day says nothing.
    """
    begun_s = whole_s = 0.0
    for name, value in headers:
        if name in _SILENCE:
            seconds = seconds_in(value)
            begun_s = min(begun_s or seconds, seconds or begun_s)
        elif name == _WHOLE:
            seconds = seconds_in(value)
            whole_s = min(whole_s or seconds, seconds or whole_s)
    return begun_s, whole_s


def hint_of(head: ResponseHead) -> float:
    """A backend's Retry-After in seconds, 0.0 without one. Dates are not read."""
    for name, value in head.headers:
        if name == b"retry-after":
            return seconds_in(value)
    return 0.0


def seconds_in(value: bytes) -> float:
    """Decimal seconds in a header's value; 0.0 when it is anything else or beyond a day."""
    if _SECONDS.fullmatch(value) is None:
        return 0.0
    seconds = float(value)
    return seconds if seconds <= SECONDS_MAX else 0.0
