"""How long a client will wait, as its own headers say it.

When the client will have gone, going on would only cost an engine. Two kinds:
`x-request-timeout` is for the whole request. The OpenAI and Anthropic SDKs send
their read timeout, the longest silence they bear (`x-stainless-read-timeout`,
`x-stainless-timeout`): it bounds the time until the answer begins, since from
then on comments and tokens break the silence. All are seconds.

The client's own timer comes first, so that it hears what it expects of a timeout:
the work ends a little later, or as soon as it leaves. Whoever is still there then
is told that its own time is over; no backend is to blame for that.
"""

import re
from math import inf
from typing import Final

from proxy.errors import (
    BackendError,
    ClientOutOfTime,
    OutOfTime,
    StreamOutOfClientTime,
    StreamOutOfTime,
)
from proxy.heads import Headers, ResponseHead

# More than a day is no deadline, and shorter than this is no number of a client's.
SECONDS_MAX: Final = 86_400.0

# What a client is given beyond its own time: its timer began later than ours, by a dial and a
# round trip, and its word that it leaves takes another one.
MARGIN: Final = 0.05
MARGIN_MIN_S: Final = 0.2
MARGIN_MAX_S: Final = 2.0

_SECONDS: Final = re.compile(rb"[0-9]{1,6}(?:\.[0-9]{1,9})?")
_WHOLE: Final = b"x-request-timeout"
_SILENCE: Final = frozenset({b"x-stainless-read-timeout", b"x-stainless-timeout"})


class Patience:
    """Until when one request may take: by its client's headers, and by `total_s` of ours."""

    __slots__ = ("_begin_by_s", "_total_by_s", "_whole_by_s")

    def __init__(self, headers: Headers, began_s: float, total_s: float | None) -> None:
        begun_s, whole_s = patience(headers)
        self._begin_by_s = began_s + begun_s + margin_s(begun_s) if begun_s else inf
        self._whole_by_s = began_s + whole_s + margin_s(whole_s) if whole_s else inf
        self._total_by_s = began_s + total_s if total_s else inf

    def next_s(self, *, started: bool) -> float:
        """When to look again; `started`: the client has seen a status."""
        whole_by_s = min(self._whole_by_s, self._total_by_s)
        return whole_by_s if started else min(whole_by_s, self._begin_by_s)

    def over(self, now_s: float, *, started: bool, committed: bool = False) -> BackendError | None:
        """What ends the request, if its time is over; `committed`: a token has been passed."""
        if now_s >= self._whole_by_s:
            return StreamOutOfClientTime() if committed else ClientOutOfTime()
        if now_s >= self._begin_by_s and not started:
            return ClientOutOfTime()
        if now_s >= self._total_by_s:
            return StreamOutOfTime() if committed else OutOfTime()
        return None

    def slept(self, time_s: float) -> None:
        """The proxy did not run for so long: all times move on."""
        self._begin_by_s += time_s
        self._whole_by_s += time_s
        self._total_by_s += time_s


def margin_s(wait_s: float) -> float:
    """How much longer than its client's wait a request may take."""
    return min(MARGIN_MAX_S, max(MARGIN_MIN_S, MARGIN * wait_s))


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
