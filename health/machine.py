"""The health of one backend: a table of states and events, and the counts between them.

Pure: no clock, no I/O. A probe's outcome becomes an event; `fall` failures in a
row eject, `rise` passes in a row bring back, and a refused connection ejects at
once, because nobody listens there. The first admission needs a single pass: a
server that never served has no record to live down.
"""

from enum import StrEnum
from types import MappingProxyType
from typing import Final

from balancing.backend import State


class Event(StrEnum):
    """What was seen of a backend."""

    PASS = "pass"  # noqa: S105
    PASS_LIMIT = "pass_limit"  # noqa: S105 - `rise` passes in a row
    FAIL = "fail"
    FAIL_LIMIT = "fail_limit"  # `fall` failures in a row
    REFUSED = "refused"  # a connection was refused: hard and certain


# State x event to state; what is not listed stays. Every pair is covered by a test.
NEXT: Final = MappingProxyType(
    {
        (State.STARTING, Event.PASS): State.READY,
        (State.STARTING, Event.PASS_LIMIT): State.READY,
        (State.READY, Event.FAIL): State.SUSPECT,
        (State.READY, Event.FAIL_LIMIT): State.EJECTED,
        (State.READY, Event.REFUSED): State.EJECTED,
        (State.SUSPECT, Event.PASS): State.READY,
        (State.SUSPECT, Event.PASS_LIMIT): State.READY,
        (State.SUSPECT, Event.FAIL_LIMIT): State.EJECTED,
        (State.SUSPECT, Event.REFUSED): State.EJECTED,
        (State.EJECTED, Event.PASS_LIMIT): State.READY,
        (State.WARMING, Event.PASS_LIMIT): State.READY,
        (State.WARMING, Event.FAIL): State.SUSPECT,
        (State.WARMING, Event.FAIL_LIMIT): State.EJECTED,
        (State.WARMING, Event.REFUSED): State.EJECTED,
    }
)


def step(state: State, event: Event) -> State:
    """The state after an event."""
    return NEXT.get((state, event), state)


class Health:
    """The state of one backend and its runs of passes and failures."""

    __slots__ = ("_fails", "_fall", "_passes", "_rise", "state")

    def __init__(self, *, fall: int, rise: int) -> None:
        self._fall = fall
        self._rise = rise
        self._passes = 0
        self._fails = 0
        self.state = State.STARTING

    def passed(self) -> State:
        """A probe passed on all its levels."""
        self._fails = 0
        self._passes += 1
        return self._step(Event.PASS_LIMIT if self._passes >= self._rise else Event.PASS)

    def failed(self) -> State:
        """A probe failed or was not answered in time."""
        self._passes = 0
        self._fails += 1
        return self._step(Event.FAIL_LIMIT if self._fails >= self._fall else Event.FAIL)

    def refused(self) -> State:
        """A connection was refused, by a probe's or by a request's."""
        self._passes = 0
        self._fails += 1
        return self._step(Event.REFUSED)

    def _step(self, event: Event) -> State:
        self.state = step(self.state, event)
        return self.state
