"""Which engines died lately, with whom, and whether one request was the cause.

A request on which two engines died may be the cause, or may only have been beside
it twice. Two deaths suffice where nothing else explains them: nobody else was
aboard, the engine died soon after it came, and no other engine died meanwhile. In
any other case it takes three, and to be the only one that was aboard each time.
What is no death:

- the end of a backend that its operator takes out, or that shuts down;
- a failure at a backend that has been failing for a second, or that is out and tried
  for want of better: its engine has died already;
- a connection that nobody takes: there was no engine to die.
"""

from typing import Final

from balancing.backend import AdminState, Backend
from balancing.lease import Lease

# All that die with an engine hear of it at once; who fails later than this after the
# first of a row met a backend that was failing already.
DEATH_S: Final = 1.0
# Deaths so close together may have one cause: a host, a power supply, a hurried restart.
TOGETHER_S: Final = 10.0
# What kills an engine does so when it is scheduled; a restart leaves one backend longer than
# that before it ends the next, to which the requests of the last have moved.
QUICK_S: Final = 2.0
CLEAR_DEATHS: Final = 2
DEATHS_MAX: Final = 3


def died_of_it(lease: Lease, now_s: float) -> bool:
    """Whether a connection that broke just now may have been the end of a sound engine."""
    return lease.sound and now_s - lease.backend.failing_since_s <= DEATH_S


def is_leaving(backend: Backend) -> bool:
    """Whether its end is expected: it is taken out, or said that it shuts down."""
    return backend.admin_state is not AdminState.READY or backend.reason == "draining"


class Death:
    """One engine's end. `moved`: which of its requests were sent on, by where they went."""

    __slots__ = ("alone", "at_s", "expected", "explained", "moved")

    def __init__(self, at_s: float, *, alone: bool, expected: bool) -> None:
        self.at_s = at_s
        self.alone = alone  # one request was aboard
        self.expected = expected
        self.explained = False  # its cause is known
        self.moved: dict[str, set[int]] = {}


class Deaths:
    """The last death of each backend, as long as it is of interest."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[str, Death] = {}

    def __len__(self) -> int:
        return len(self._last)

    def of(self, backend: Backend, now_s: float, *, expected: bool) -> Death:
        """The death that a request met just now: one for all who died with it."""
        death = self._last.get(backend.name)
        if death is None or now_s - death.at_s > DEATH_S:
            for name in [n for n, d in self._last.items() if now_s - d.at_s > TOGETHER_S]:
                del self._last[name]
            alone = not backend.own.requests  # its own lease has ended, it is the first to hear
            death = Death(now_s, alone=alone, expected=expected)
            self._last[backend.name] = death
        return death

    def others(self, own: list[Death], now_s: float) -> bool:
        """Whether another engine died lately, and no request is known to be the cause."""
        return any(
            not death.explained and death not in own and now_s - death.at_s <= TOGETHER_S
            for death in self._last.values()
        )


class Suspect:
    """A request that engines died with; `key` is that of its bytes."""

    __slots__ = ("_at", "_key", "_met")

    def __init__(self, key: int) -> None:
        self._key = key
        self._met: list[Death] = []
        self._at = ""

    def sent(self, backend: str) -> None:
        """It was sent on."""
        self._at = backend
        for death in self._met:
            death.moved.setdefault(backend, set()).add(self._key)

    def spared(self) -> None:
        """It left, and the engine lives."""
        if self._at:
            for death in self._met:
                death.moved[self._at].discard(self._key)
            self._at = ""

    def died(self, lease: Lease, deaths: Deaths, now_s: float, *, expected: bool) -> bool:
        """An engine died with it; whether it is the cause, as far as can be told."""
        name = lease.backend.name
        death = deaths.of(lease.backend, now_s, expected=expected)
        self._at = ""
        if death.expected or death in self._met:
            return False
        earlier = self._met
        self._met = met = [*earlier, death]
        if len(met) >= DEATHS_MAX:
            cause = any(len(before.moved.get(name, ())) <= 1 for before in earlier)
        else:
            cause = (
                len(met) >= CLEAR_DEATHS
                and now_s - lease.began_s <= QUICK_S
                and all(each.alone for each in met)
                and not deaths.others(met, now_s)
            )
        if cause:
            for each in met:
                each.explained = True
        return cause
