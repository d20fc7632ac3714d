"""The health of one backend: a table of states and events, and the counts behind the events.

Pure: time and randomness are arguments. Results of probes and requests become events, and
the table says what they change. There are two kinds of ejection. A *certain* one (nobody
listens, the server drains, the engine sleeps, `fall` probes failed in a row) always
happens. One *on suspicion* (requests or deep probes fail) may be forbidden by the caller,
so that it never empties a pool.

    starting --passed--> ready <--passed-- suspect
       |                  |  \\--failed----> |
       |                  '--out--> ejected <--out--'   warming --failed, out--> ejected
       |                               '----recovered----> warming --warmed--> ready
       '--arrived--> warming
"""

from enum import StrEnum
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.balancing.backend import State

# After this many failed requests in a row the backend is taken to be at fault, as with Envoy's
# `consecutive_5xx`.
REQUESTS_FALL: Final = 5
# While it warms up this many are enough. One could be the request's own fault: with one request in
# fifty failing, at 25 requests/s, hardly any backend would finish its slow start. With two most do.
PROBATION_FALL: Final = 2
# A backend that is ejected again stays out longer, so that a flapping one gets few requests: 10 s
# for each ejection that is not forgotten. The first certain one costs nothing, so that a restarted
# server is used again at once.
EJECTION_S: Final = 10.0
EJECTION_JITTER: Final = 0.2
# One ejection is forgotten after each such time. So the waiting time settles near it.
FORGIVEN_S: Final = 120.0


class Event(StrEnum):
    """What happened to a backend."""

    PASSED = "passed"  # every probe was answered
    ARRIVED = "arrived"  # the same of one that is new in a running pool
    FAILED = "failed"  # a probe or a row of requests failed, or it refuses
    OUT = "out"  # too many failures, or a certain one
    RECOVERED = "recovered"  # enough passes, the deep probe last, and the waiting time is over
    WARMED = "warmed"  # slow start is over


# (state, event) -> state. A pair that is not listed changes nothing. A test covers every pair.
NEXT: Final = MappingProxyType(
    {
        (State.STARTING, Event.PASSED): State.READY,
        (State.STARTING, Event.ARRIVED): State.WARMING,
        (State.STARTING, Event.RECOVERED): State.READY,
        (State.READY, Event.FAILED): State.SUSPECT,
        (State.READY, Event.OUT): State.EJECTED,
        (State.SUSPECT, Event.PASSED): State.READY,
        (State.SUSPECT, Event.RECOVERED): State.READY,
        (State.SUSPECT, Event.OUT): State.EJECTED,
        (State.EJECTED, Event.RECOVERED): State.WARMING,
        (State.WARMING, Event.FAILED): State.EJECTED,  # if the pool can spare the backend
        (State.WARMING, Event.OUT): State.EJECTED,
        (State.WARMING, Event.WARMED): State.READY,
    }
)


def step(state: State, event: Event) -> State:
    """The state after an event."""
    return NEXT.get((state, event), state)


class ToReturn(NamedTuple):
    """How far an ejected backend is from its return. A passed deep probe comes last."""

    passed_probes: int  # in a row
    needed_probes: int
    wait_s: float  # the rest of its waiting time


class Health:
    """The state of one backend, its passes and failures in a row, its ejections."""

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
        "held",
        "new",
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
        self._since_s = 0.0  # the time of the last ejection
        self.state = State.STARTING
        self.refusing = False  # it refuses requests of several clients, while its probes pass
        self.certain = False  # whether the last ejection was a certain one
        self.new = False  # it came to a running pool, and begins slowly
        self.held = False  # it is ejected, and does not return by itself

    def set_thresholds(self, *, fall: int, rise: int, deep_fall: int) -> None:
        """Set how many passes or failures in a row are needed, from the next one on."""
        self._fall = fall
        self._rise = rise
        self._deep_fall = deep_fall

    @property
    def doubted(self) -> bool:
        """Whether it may serve when nothing else can: it is ejected on suspicion only, or answers
        its probes again and waits for its return."""
        again = self._passes >= self._rise
        return self.state is State.EJECTED and (again or not self.certain)

    @property
    def deep_in_doubt(self) -> bool:
        """Whether a deep probe has failed and none has passed since."""
        return self._deep_fails > 0

    def wants_deep(self, now_s: float) -> bool:
        """Whether only a passed deep probe is missing for its return."""
        return (
            self.state is State.EJECTED
            and not self.held
            and self._passes >= self._rise
            and now_s >= self._out_until_s
        )

    def to_return(self, now_s: float) -> ToReturn | None:
        """What is missing for its return. None unless it is ejected and not held."""
        if self.state is not State.EJECTED or self.held:
            return None
        passes = min(self._passes, self._rise)
        return ToReturn(passes, self._rise, max(0.0, self._out_until_s - now_s))

    def passed(self) -> None:
        """A live and a ready probe passed."""
        self._fails = 0
        self._passes += 1
        if not self._deep_fails and not self.refusing:
            arrives = self.new and self.state is State.STARTING
            self._step(Event.ARRIVED if arrives else Event.PASSED)

    def deep_passed(self, now_s: float) -> None:
        """The engine generates: a deep probe passed, or streams progressed meanwhile."""
        self._deep_fails = 0
        if self.wants_deep(now_s):
            self._step(Event.RECOVERED)
        elif self._passes and not self.refusing:
            self._step(Event.PASSED)

    def failed(self, now_s: float, *, may_eject: bool, late: bool = False) -> None:
        """A live or ready probe failed. `fall` in a row eject for certain. `late`: it timed out."""
        self._passes = 0
        self._fails += 1
        if self._fails >= self._fall:
            self._out(now_s, certain=True)
        else:
            once = late and self._fails < PROBATION_FALL
            self._failed(now_s, may_eject=may_eject and not once)

    def deep_failed(self, now_s: float, *, may_eject: bool, late: bool = False) -> None:
        """A deep probe failed. `deep.fall` in a row eject, if the pool can spare the backend."""
        self._deep_fails += 1
        if self._deep_fails >= self._deep_fall and may_eject:
            self._out(now_s, certain=False)
        else:
            once = late and self._deep_fails < PROBATION_FALL
            self._failed(now_s, may_eject=may_eject and not once)

    def requests_failed(self, now_s: float, in_row: int, *, may_eject: bool) -> None:
        """`in_row` requests in a row failed for reasons of the backend itself."""
        if in_row >= REQUESTS_FALL and may_eject:
            self._out(now_s, certain=False)
        elif in_row >= REQUESTS_FALL or (in_row >= PROBATION_FALL and self.state is State.WARMING):
            self._failed(now_s, may_eject=may_eject)

    def refuse(self) -> None:
        """It refuses what other backends serve. It becomes suspect but serves what it can."""
        self.refusing = True
        if self.state is State.READY:
            self._step(Event.FAILED)

    def down(self, now_s: float) -> None:
        """It certainly cannot serve: connection refused, draining or asleep."""
        self._passes = 0
        self._fails += 1
        self._out(now_s, certain=True)

    def take_out(self, now_s: float, *, may_eject: bool) -> bool:
        """It is worse than its peers. Returns whether it was ejected: it is held then."""
        if self.state in (State.STARTING, State.EJECTED) or not may_eject:
            return False
        self._out(now_s, certain=False)
        self.held = True
        return True

    def release(self) -> None:
        """It may return, as soon as its probes pass."""
        if self.held:
            self.held = False
            self._out_until_s = 0.0

    def warmed(self) -> None:
        """Its slow start is over."""
        self._step(Event.WARMED)

    def _failed(self, now_s: float, *, may_eject: bool) -> None:
        if self.state is not State.WARMING:
            self._step(Event.FAILED)
        elif may_eject:  # on probation: one failed probe is enough, or two late ones
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
