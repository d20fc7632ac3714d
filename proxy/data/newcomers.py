"""The new backends of all pools: what each request shows of them, and who is taken out.

The health monitor tells who is new. While nobody is, a request costs one look at an empty table.
"""

import logging
from collections.abc import Callable, Collection
from typing import Final

from penstock.balancing.backend import Backend
from penstock.balancing.canary.ended import Ended
from penstock.balancing.canary.newcomer import Found, Newcomer, Outcome
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
    """One that is new since `since_s`."""

    __slots__ = ("backend", "newcomer", "requests", "since_s", "why")

    def __init__(self, backend: Backend, since_s: float) -> None:
        self.backend = backend
        self.since_s = since_s
        self.newcomer: Newcomer | None = None  # while it is judged
        self.why = ""  # why it is worse, while its pool cannot spare it
        self.requests = 0  # that have shown that


class _New:
    """The new ones of one pool, by name. Each is in one of these."""

    __slots__ = ("judged", "waiting", "worse")

    def __init__(self) -> None:
        self.waiting: dict[str, _One] = {}  # for their first request, or for a place
        self.judged: dict[str, _One] = {}
        self.worse: dict[str, _One] = {}  # until the pool can spare them

    def __bool__(self) -> bool:
        return bool(self.waiting or self.judged or self.worse)

    def keep(self, known: Collection[Backend]) -> None:
        """Forget those that are not among these."""
        for table in (self.waiting, self.judged, self.worse):
            for name in [name for name, each in table.items() if each.backend not in known]:
                del table[name]

    def begin_anew(self) -> None:
        """Judge all that are new from their next request on."""
        for table in (self.judged, self.worse):
            for name, each in table.items():
                self.waiting[name] = _One(each.backend, each.since_s)
            table.clear()

    def judged_at(self, name: str, began_s: float, *, alone: bool) -> _One | None:
        """The one that a request showed something of. It is judged from its first request on, if a
        place is free: one that never serves holds none."""
        one = self.waiting.get(name)
        if one is None or began_s < one.since_s or len(self.judged) >= JUDGED_MAX:
            return self.judged.get(name)
        one.newcomer = Newcomer(alone=alone)
        self.judged[name] = self.waiting.pop(name)
        return one


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
        known = set(fleet.backends) if settings.judge else set()
        for new in self._pools.values():
            new.keep(known)
            if other:  # what is known was found by the other rule
                new.begin_anew()
        self._out = {each: why for each, why in self._out.items() if each in fleet.backends}
        self._changed()

    def arrived(self, backend: Backend) -> None:
        """It is new in its pool, or another engine than before: judge it from its first request."""
        self._out.pop(backend, None)
        if not self._settings.judge:
            return
        new = self._pools.setdefault(backend.pool, _New())
        new.judged.pop(backend.name, None)
        new.worse.pop(backend.name, None)
        new.waiting[backend.name] = _One(backend, self._now())
        self._changed()

    def accepted(self, backend: Backend) -> None:
        """An operator wants it back that was taken out."""
        self._out.pop(backend, None)

    def ended(self, request: Request) -> None:
        """A request has ended. What its first attempt shows counts: those that follow are not
        drawn as the first are, because a request that fails everywhere would come to all."""
        first = request.record.tries[0] if request.record.tries else None
        new = self.by_backend.get(first.backend) if first is not None else None
        if first is None or new is None or not request.ask.engine:
            return
        ending = first_ending(request)
        if ending is None:
            return
        alone = self._settings.clients_min == 1
        own = new.judged_at(first.backend, first.began_s, alone=alone)
        if own is not None and first.began_s < own.since_s:
            return  # it was another engine's
        if first.backend in new.waiting or first.backend in new.worse:
            return  # it is no peer
        ask = request.ask
        ended = Ended(
            ending,
            canary=own is not None,
            client=ask.client,
            fresh=False,
            prompt_tokens=ask.prompt_tokens,
            stream=ask.stream,
        )
        now_s = request.record.ended_s
        for each in [own] if own is not None else new.judged.values():
            assert each.newcomer is not None
            each.newcomer.add(ended, now_s)

    def look(self, now_s: float) -> None:
        """Take out who is worse, and leave alone who is known. Call it every second or so."""
        for pool, new in list(self._pools.items()):
            for name, each in list(new.judged.items()):
                assert each.newcomer is not None
                found = each.newcomer.look(now_s)
                if found is None:
                    continue
                del new.judged[name]
                if found.outcome is Outcome.WORSE:
                    each.why, each.requests = found.why, each.newcomer.requests
                    each.newcomer = None
                    new.worse[name] = each
                else:
                    self._outcomes.add(pool, found.outcome.value)
                    _log(each.backend, found)
            for name, each in list(new.worse.items()):
                if self.take_out(each.backend, each.why):
                    del new.worse[name]
                    self._out[each.backend] = each.why
                    self._outcomes.add(pool, Outcome.WORSE.value)
            if not new:
                self._changed()

    def told(self, backend: Backend) -> dict[str, object] | None:
        """What is known of a new backend, as JSON. None of all others."""
        if backend in self._out:
            return {"stage": "worse", "requests": None, "why": self._out[backend]}
        new, name = self.by_backend.get(backend.name), backend.name
        if new is None:
            return None
        if name in new.waiting:
            stage = "waits" if len(new.judged) >= JUDGED_MAX else "judged"
            return {"stage": stage, "requests": 0, "why": ""}
        one = new.judged.get(name) or new.worse.get(name)
        if one is None:
            return None
        requests = one.newcomer.requests if one.newcomer is not None else one.requests
        return {"stage": "judged", "requests": requests, "why": one.why}

    def _changed(self) -> None:
        """Note who is new beside whom."""
        self._pools = {name: new for name, new in self._pools.items() if new}
        self.by_backend = {
            backend.name: self._pools[backend.pool]
            for backend in self._fleet.backends
            if backend.pool in self._pools
        }


def _log(backend: Backend, found: Found) -> None:
    logger.info(
        "a new backend is judged no longer name=%s pool=%s outcome=%s why=%s",
        *(backend.name, backend.pool, found.outcome.value, found.why),
    )
