"""The new backends of all pools: what each request shows of them, and who is taken out.

The health monitor tells who is new. While nobody is, a request costs one look at an empty table.
"""

import logging
from collections.abc import Callable, Collection
from typing import Final

from penstock.balancing.backend import Backend
from penstock.balancing.canary.judge import Newcomer, Outcome
from penstock.balancing.canary.metrics import Ended
from penstock.balancing.fleet import Fleet
from penstock.conf.health import NewcomerSettings
from penstock.proxy.data.evidence import first_ending
from penstock.proxy.data.request import Request
from penstock.proxy.telemetry.metrics import Counter

logger = logging.getLogger(__name__)

# So many of a pool are judged at once, because each looks at every request of the pool. Others
# wait for a place; what they do counts for nobody meanwhile.
JUDGED_MAX: Final = 4


class _One:
    """One that is new since `since_s`. It waits for its first request and for a place, then it is
    judged. If it is worse, `why` tells it until its pool can spare it."""

    def __init__(self, backend: Backend, since_s: float) -> None:
        self.backend = backend
        self.since_s = since_s
        self.newcomer: Newcomer | None = None
        self.why = ""


class _New:
    """The new ones of one pool by name, and those of them that are judged."""

    def __init__(self) -> None:
        self.all: dict[str, _One] = {}
        self.judged: dict[str, Newcomer] = {}

    def drop(self, name: str) -> None:
        self.all.pop(name, None)
        self.judged.pop(name, None)

    def keep(self, known: Collection[Backend]) -> None:
        for name in [name for name, each in self.all.items() if each.backend not in known]:
            self.drop(name)

    def begin_anew(self) -> None:
        """Judge all from their next request on."""
        self.all = {name: _One(each.backend, each.since_s) for name, each in self.all.items()}
        self.judged = {}

    def begin(self, one: _One, *, alone: bool) -> bool:
        """Judge one from its first request on. False: no place is free."""
        if one.newcomer is None:
            if len(self.judged) >= JUDGED_MAX:
                return False
            one.newcomer = self.judged[one.backend.name] = Newcomer(alone=alone)
        return True


class Newcomers:
    """Who is judged beside its peers. Empty while nobody is new."""

    def __init__(self, now: Callable[[], float], outcomes: Counter) -> None:
        """`outcomes`: by pool, what became of them."""
        self._now = now
        self._outcomes = outcomes
        self._settings = NewcomerSettings()
        self._fleet: Fleet = Fleet(())
        self._pools: dict[str, _New] = {}
        self.by_backend: dict[str, _New] = {}  # of these pools, by each backend
        self._out: dict[Backend, str] = {}  # why they were taken out
        # Takes out one that is worse. Returns False where its pool cannot spare it.
        self.take_out: Callable[[Backend, str], bool] = lambda backend, why: False

    def __len__(self) -> int:
        return len(self.by_backend)

    def follow(self, fleet: Fleet, settings: NewcomerSettings) -> None:
        """The fleet and the settings from now on. Who is in it no longer is forgotten."""
        other = settings.clients_min != self._settings.clients_min
        self._fleet, self._settings = fleet, settings
        used = set(fleet.backends)
        for new in self._pools.values():
            new.keep(used if settings.judge else set())
            if other:  # what is known was found by the other rule
                new.begin_anew()
        self._out = {each: why for each, why in self._out.items() if each in used}
        self._changed()

    def arrived(self, backend: Backend) -> None:
        """It is new in its pool, or another engine than before: judge it from its first request."""
        self._out.pop(backend, None)
        if not self._settings.judge:
            return
        known = backend.pool in self._pools and backend.name in self.by_backend
        new = self._pools.setdefault(backend.pool, _New())
        new.drop(backend.name)
        new.all[backend.name] = _One(backend, self._now())
        if not known:  # many come at once when all are new
            self._changed()

    def accepted(self, backend: Backend) -> None:
        """An operator wants it back that was taken out."""
        self._out.pop(backend, None)

    def ended(self, request: Request) -> None:
        """Count only the first attempt of a request that has ended: retries are not randomly
        assigned, and a bad request reaches every backend."""
        first = request.record.tries[0] if request.record.tries else None
        new = self.by_backend.get(first.backend) if first is not None else None
        if first is None or new is None or not request.ask.engine:
            return
        ending = first_ending(request)
        if ending is None:
            return
        one = new.all.get(first.backend)
        if one is not None:
            if one.why or first.began_s < one.since_s:
                return  # it is no peer, or the request was another engine's
            if not new.begin(one, alone=self._settings.clients_min == 1):
                return
        ask = request.ask
        ended = Ended(
            ending,
            canary=one is not None,
            client=ask.client,
            fresh=False,
            prompt_tokens=ask.prompt_tokens,
            stream=ask.stream,
        )
        for name, newcomer in new.judged.items():
            if one is None or name == first.backend:
                newcomer.add(ended, request.record.ended_s)

    def look(self, now_s: float) -> None:
        """Take out who is worse, and leave alone who is known. Call it every second or so."""
        for pool, new in list(self._pools.items()):
            for name, newcomer in list(new.judged.items()):
                found = newcomer.look(now_s)
                if found is None:
                    continue
                if found.outcome is Outcome.WORSE:
                    new.all[name].why = found.why
                    del new.judged[name]
                    continue
                new.drop(name)
                self._outcomes.add(pool, found.outcome.value)
                logger.info(
                    "a new backend is judged no longer name=%s pool=%s outcome=%s why=%s",
                    *(name, pool, found.outcome.value, found.why),
                )
            for one in [each for each in new.all.values() if each.why]:
                if self.take_out(one.backend, one.why):
                    new.drop(one.backend.name)
                    self._out[one.backend] = one.why
                    self._outcomes.add(pool, Outcome.WORSE.value)
            if not new.all:
                self._changed()

    def told(self, backend: Backend) -> dict[str, object] | None:
        """What is known of a new backend, as JSON. None of all others."""
        if backend in self._out:
            return {"stage": "worse", "requests": None, "why": self._out[backend]}
        new = self.by_backend.get(backend.name)
        one = new.all.get(backend.name) if new is not None else None
        if new is None or one is None:
            return None
        if one.newcomer is None:
            stage = "waits" if len(new.judged) >= JUDGED_MAX else "judged"
            return {"stage": stage, "requests": 0, "why": ""}
        return {"stage": "judged", "requests": one.newcomer.requests, "why": one.why}

    def _changed(self) -> None:
        """Note who is new beside whom."""
        self._pools = {name: new for name, new in self._pools.items() if new.all}
        self.by_backend = {
            backend.name: self._pools[backend.pool]
            for backend in self._fleet.backends
            if backend.pool in self._pools
        }
