"""The health of one backend: a table of states and events, and the counts between them.

Pure: time and randomness are arguments. What probes and requests saw becomes an
event; the table says what it changes. Two kinds of ejection: *certain* (nobody
listens, the server drains, the engine sleeps, `fall` probes failed in a row),
which always happens, and *on suspicion* (requests or deep probes fail), which
the caller may forbid so that a pool is never emptied by it.

    starting --passed--> ready <--passed-- suspect
                          |  \\--failed----> |
                          '--out--> ejected <--out--'   warming --failed, out--> ejected
                                       '----recovered----> warming --warmed--> ready
"""

from enum import StrEnum
from random import Random
from types import MappingProxyType
from typing import Final

from balancing.backend import State

# Requests that fail in a row before they are taken for the backend's fault: Envoy's
# `consecutive_5xx`.
REQUESTS_FALL: Final = 5
# While it warms up. One alone may be the request's own fault: with one request in fifty failing, at
# 25 requests/s, hardly any backend would see the end of its slow start; with two in a row most do.
PROBATION_FALL: Final = 2
# A backend that is ejected again stays out longer, so that one that flaps takes
# little: 10 s for each ejection that is not forgotten. The first certain one
# costs nothing: a restarted server is welcome at once.
EJECTION_S: Final = 10.0
EJECTION_JITTER: Final = 0.2
# One ejection is forgotten for each such time, so that the wait settles near it.
FORGIVEN_S: Final = 120.0


class Event(StrEnum):
    """What was seen of a backend."""

    PASSED = "passed"  # all that was asked was answered
    FAILED = "failed"  # something was not
    OUT = "out"  # too many failures, or one that is certain
    RECOVERED = "recovered"  # enough passes, a deep one last, and its time is over
    WARMED = "warmed"  # slow start is over


# State x event to state; what is not listed stays. Every pair is covered by a test.
NEXT: Final = MappingProxyType(
    {
        (State.STARTING, Event.PASSED): State.READY,
        (State.STARTING, Event.RECOVERED): State.READY,
        (State.READY, Event.FAILED): State.SUSPECT,
        (State.READY, Event.OUT): State.EJECTED,
        (State.SUSPECT, Event.PASSED): State.READY,
        (State.SUSPECT, Event.RECOVERED): State.READY,
        (State.SUSPECT, Event.OUT): State.EJECTED,
        (State.EJECTED, Event.RECOVERED): State.WARMING,
        (State.WARMING, Event.FAILED): State.EJECTED,  # where the pool can spare it
        (State.WARMING, Event.OUT): State.EJECTED,
        (State.WARMING, Event.WARMED): State.READY,
    }
)


def step(state: State, event: Event) -> State:
    """The state after an event."""
    return NEXT.get((state, event), state)


class Health:
    """The state of one backend, its runs of passes and failures, its ejections."""

    __slots__ = (
        "_deep_fails",
        "_deep_fall",
        "_ejections",
        "_fails",
        "_fall",
        "_out_until_s",
        "_passes",
        "_rise",
        "_rng",
        "_since_s",
        "certain",
        "refusing",
        "state",
    )

    def __init__(self, *, fall: int, rise: int, deep_fall: int, rng: Random) -> None:
        self._rng = rng
        self.set_thresholds(fall=fall, rise=rise, deep_fall=deep_fall)
        self._passes = 0
        self._fails = 0
        self._deep_fails = 0
        self._ejections = 0
        self._out_until_s = 0.0
        self._since_s = 0.0  # of the last ejection
        self.state = State.STARTING
        self.refusing = False  # requests, of several clients; its probes pass
        self.certain = False  # the last ejection was no mere suspicion

    def set_thresholds(self, *, fall: int, rise: int, deep_fall: int) -> None:
        """How long runs must be, from the next failure or pass on."""
        self._fall = fall
        self._rise = rise
        self._deep_fall = deep_fall

    @property
    def doubted(self) -> bool:
        """Ejected on suspicion only: to be used when there is nothing better."""
        return self.state is State.EJECTED and not self.certain

    @property
    def deep_in_doubt(self) -> bool:
        """A deep probe has failed and none has passed since."""
        return self._deep_fails > 0

    def wants_deep(self, now_s: float) -> bool:
        """Whether only a deep pass is missing for its return."""
        return (
            self.state is State.EJECTED
            and self._passes >= self._rise
            and now_s >= self._out_until_s
        )

    def passed(self) -> None:
        """A live and a ready probe passed."""
        self._fails = 0
        self._passes += 1
        if not self._deep_fails and not self.refusing:
            self._step(Event.PASSED)

    def deep_passed(self, now_s: float) -> None:
        """It generates: a deep probe passed, or streams progressed meanwhile."""
        self._deep_fails = 0
        if self.wants_deep(now_s):
            self._step(Event.RECOVERED)
        elif self._passes and not self.refusing:
            self._step(Event.PASSED)

    def failed(self, now_s: float, *, may_eject: bool, late: bool = False) -> None:
        """A live or ready probe failed; `fall` in a row are certain. `late`: it timed out."""
        self._passes = 0
        self._fails += 1
        if self._fails >= self._fall:
            self._out(now_s, certain=True)
        else:
            once = late and self._fails < PROBATION_FALL
            self._failed(now_s, may_eject=may_eject and not once)

    def deep_failed(self, now_s: float, *, may_eject: bool, late: bool = False) -> None:
        """A deep probe failed; `deep.fall` in a row eject, if the pool can spare it."""
        self._deep_fails += 1
        if self._deep_fails >= self._deep_fall and may_eject:
            self._out(now_s, certain=False)
        else:
            once = late and self._deep_fails < PROBATION_FALL
            self._failed(now_s, may_eject=may_eject and not once)

    def requests_failed(self, now_s: float, in_row: int, *, may_eject: bool) -> None:
        """So many requests in a row failed for reasons of the backend's own."""
        if in_row >= REQUESTS_FALL and may_eject:
            self._out(now_s, certain=False)
        elif in_row >= REQUESTS_FALL or (in_row >= PROBATION_FALL and self.state is State.WARMING):
            self._failed(now_s, may_eject=may_eject)

    def refuse(self) -> None:
        """It refuses what its peers do not: a doubt, whatever probes say; it serves what it can."""
        self.refusing = True
        if self.state is State.READY:
            self._step(Event.FAILED)

    def down(self, now_s: float) -> None:
        """It cannot serve for certain: refused, draining, asleep."""
        self._passes = 0
        self._fails += 1
        self._out(now_s, certain=True)

    def warmed(self) -> None:
        """Its slow start is over."""
        self._step(Event.WARMED)

    def _failed(self, now_s: float, *, may_eject: bool) -> None:
        if self.state is not State.WARMING:
            self._step(Event.FAILED)
        elif may_eject:  # on probation: a failed probe is enough, or two that are late
            self._out(now_s, certain=False)

    def _out(self, now_s: float, *, certain: bool) -> None:
        before = self.state
        self._step(Event.OUT)
        if self.state is not State.EJECTED:
            return
        if before is State.EJECTED:
            if self.certain or not certain:
                return
        else:
            forgiven = int((now_s - self._since_s) / FORGIVEN_S)
            self._ejections = max(0, self._ejections - forgiven) + 1
            self._since_s = now_s
        self.certain = certain
        self._passes = 0
        times = self._ejections - 1 if certain else self._ejections
        jitter = 1.0 + EJECTION_JITTER * (2.0 * self._rng.random() - 1.0)
        self._out_until_s = now_s + EJECTION_S * times * jitter

    def _step(self, event: Event) -> None:
        self.state = step(self.state, event)
