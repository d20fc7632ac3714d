"""How long a client will wait, as its own headers say.

When the client is gone, more work would only cost an engine. There are two kinds of headers.
`x-request-timeout` limits the whole request. The OpenAI and Anthropic SDKs send their read
timeout, the longest silence that they accept (`x-stainless-read-timeout`,
`x-stainless-timeout`). It limits the time until the answer begins. After that, comments and
tokens break the silence. All values are in seconds.

The client's own timer should fire first, so that the client sees its usual timeout. So the
work ends a little later, or when the client leaves. A client that is still there then is told
that its own time is over. No backend is blamed for that.
"""

import re
from math import inf
from typing import Final

from penstock.proxy.errors.backend import (
    BackendError,
    ClientOutOfTime,
    OutOfTime,
    StreamOutOfClientTime,
    StreamOutOfTime,
)
from penstock.proxy.wire.header_fields import Headers
from penstock.proxy.wire.heads import ResponseHead

# A longer time than a day counts as no deadline.
SECONDS_MAX: Final = 86_400.0

# What is added to the client's time: its timer began later than ours, by a connect and a round
# trip, and its close takes another one.
MARGIN: Final = 0.05
MARGIN_MIN_S: Final = 0.2
MARGIN_MAX_S: Final = 2.0

_SECONDS: Final = re.compile(rb"[0-9]{1,6}(?:\.[0-9]{1,9})?")
_WHOLE: Final = b"x-request-timeout"
_SILENCE: Final = frozenset({b"x-stainless-read-timeout", b"x-stainless-timeout"})


class Patience:
    """When a request must end: by the client's headers and by our `total_s`."""

    def __init__(self, headers: Headers, began_s: float, total_s: float | None) -> None:
        begun_s, whole_s = patience(headers)
        self._begun_s, self._whole_s, self._total_s = begun_s, whole_s, total_s or 0.0
        self._begin_by_s = began_s + begun_s + margin_s(begun_s) if begun_s else inf
        self._whole_by_s = began_s + whole_s + margin_s(whole_s) if whole_s else inf
        self._total_by_s = began_s + total_s if total_s else inf

    @property
    def begins_within_s(self) -> float:
        """How long the client waits for the beginning of an answer."""
        least_s = self._begun_s or inf
        if self._whole_s and self._whole_s < least_s:
            least_s = self._whole_s
        if self._total_s and self._total_s < least_s:
            least_s = self._total_s
        return least_s

    def next_s(self, *, started: bool) -> float:
        """When to check again. `started`: the client was sent a status."""
        whole_by_s = min(self._whole_by_s, self._total_by_s)
        return whole_by_s if started else min(whole_by_s, self._begin_by_s)

    def over(self, now_s: float, *, started: bool, committed: bool = False) -> BackendError | None:
        """The error that ends the request if its time is over. `committed`: it has a token."""
        if now_s >= self._whole_by_s:
            return StreamOutOfClientTime() if committed else ClientOutOfTime()
        if now_s >= self._begin_by_s and not started:
            return ClientOutOfTime()
        if now_s >= self._total_by_s:
            return StreamOutOfTime() if committed else OutOfTime()
        return None


def margin_s(wait_s: float) -> float:
    """How much longer than the client's own time a request may take."""
    return min(MARGIN_MAX_S, max(MARGIN_MIN_S, MARGIN * wait_s))


def patience(headers: Headers) -> tuple[float, float]:
    """(seconds until the answer must begin, seconds for all of it). 0.0 means not given.

    Of several headers the shortest time counts. Malformed, zero or more than a day: not given.
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
    """A backend's Retry-After in seconds. 0.0 without one. Dates are not read."""
    for name, value in head.headers:
        if name == b"retry-after":
            return seconds_in(value)
    return 0.0


def seconds_in(value: bytes) -> float:
    """Decimal seconds in a header's value. 0.0 for anything else or more than a day."""
    if _SECONDS.fullmatch(value) is None:
        return 0.0
    seconds = float(value)
    return seconds if seconds <= SECONDS_MAX else 0.0
