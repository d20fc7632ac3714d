"""The new backends of all pools: what each request shows of them, and who is taken out.

The health monitor tells who is new. While nobody is, a request costs one look at an empty table.
"""

import logging
from collections.abc import Callable
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
# wait for their turn; what they do counts for nobody meanwhile.
JUDGED_MAX: Final = 4


class _Judged:
    """One that is judged. `why`: it is worse, but its pool cannot spare it now."""

    __slots__ = ("backend", "newcomer", "since_s", "why")

    def __init__(self, backend: Backend, newcomer: Newcomer, now_s: float) -> None:
        self.backend = backend
        self.newcomer = newcomer
        self.since_s = now_s
        self.why = ""


class _New:
    """The new ones of one pool, in the order in which they came."""

    __slots__ = ("judged", "waiting")

    def __init__(self) -> None:
        self.judged: dict[str, _Judged] = {}
        self.waiting: dict[str, Backend] = {}


class Newcomers:
    """Who is judged beside its peers. Empty while nobody is new."""

    def __init__(self, now: Callable[[], float], outcomes: Counter) -> None:
        """`outcomes`: by pool, what became of them."""
        self._now = now
        self._outcomes = outcomes
        self._settings = NewcomerSettings()
        self._fleet: Fleet = Fleet(())
        self._pools: dict[str, _New] = {}
        self._at: dict[str, _New] = {}  # by each backend of these pools
        self._out: dict[Backend, str] = {}  # why they were taken out
        # Takes out one that is worse. Returns False where its pool cannot spare it.
        self.take_out: Callable[[Backend, str], bool] = lambda backend, why: False

    def __len__(self) -> int:
        return len(self._at)

    def follow(self, fleet: Fleet, settings: NewcomerSettings) -> None:
        """The fleet and the settings from now on. Who is in it no longer is forgotten."""
        self._fleet, self._settings = fleet, settings
        known = set(fleet.backends) if settings.judge else set()
        for new in self._pools.values():
            new.judged = {name: each for name, each in new.judged.items() if each.backend in known}
            new.waiting = {name: each for name, each in new.waiting.items() if each in known}
        self._out = {each: why for each, why in self._out.items() if each in fleet.backends}
        self._changed()

    def arrived(self, backend: Backend) -> None:
        """It is new in its pool, or another engine than before: judge it from its first request."""
        self._out.pop(backend, None)
        if not self._settings.judge:
            return
        new = self._pools.setdefault(backend.pool, _New())
        new.judged.pop(backend.name, None)
        new.waiting[backend.name] = backend
        self._changed()

    def accepted(self, backend: Backend) -> None:
        """An operator wants it back that was taken out."""
        self._out.pop(backend, None)

    def ended(self, request: Request) -> None:
        """A request has ended. What its first attempt shows counts: those that follow are not
        drawn as the first are, because a request that fails everywhere would come to all."""
        if not self._at:
            return
        first = request.record.tries[0] if request.record.tries else None
        new = self._at.get(first.backend) if first is not None else None
        if first is None or new is None or first.backend in new.waiting or not request.ask.engine:
            return
        ending = first_ending(request)
        own = new.judged.get(first.backend)
        if ending is None or (own is not None and first.began_s < own.since_s):
            return  # or it was another engine's
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
            each.newcomer.add(ended, now_s)

    def look(self, now_s: float) -> None:
        """Take out who is worse, and leave alone who is known. Call it every second or so."""
        for pool, new in list(self._pools.items()):
            for name, each in list(new.judged.items()):
                found = each.newcomer.look(now_s)
                if found is None or not self._ends(each, found):
                    continue
                del new.judged[name]
                self._outcomes.add(pool, found.outcome.value)
                self._changed()

    def told(self, backend: Backend) -> dict[str, object] | None:
        """What is known of a new backend, as JSON. None of all others."""
        if backend in self._out:
            return {"stage": "worse", "requests": None, "why": self._out[backend]}
        new = self._at.get(backend.name)
        if new is not None and backend.name in new.waiting:
            return {"stage": "waits", "requests": 0, "why": ""}
        if new is None or backend.name not in new.judged:
            return None
        each = new.judged[backend.name]
        return {"stage": "judged", "requests": each.newcomer.requests, "why": each.why}

    def _ends(self, each: _Judged, found: Found) -> bool:
        """Act on what is found of one. False: it is worse, and its pool cannot spare it now."""
        backend = each.backend
        if found.outcome is not Outcome.WORSE:
            logger.info(
                "a new backend is judged no longer name=%s pool=%s outcome=%s why=%s",
                *(backend.name, backend.pool, found.outcome.value, found.why),
            )
        elif self.take_out(backend, found.why):
            self._out[backend] = found.why
        else:
            each.why = found.why
            return False
        return True

    def _changed(self) -> None:
        """Judge as many as may be judged at once, and note who is beside them."""
        alone = self._settings.clients_min == 1
        self._pools = {name: new for name, new in self._pools.items() if new.judged or new.waiting}
        for new in self._pools.values():
            while new.waiting and len(new.judged) < JUDGED_MAX:
                name = next(iter(new.waiting))
                newcomer = Newcomer(alone=alone)
                new.judged[name] = _Judged(new.waiting.pop(name), newcomer, self._now())
        self._at = {
            backend.name: self._pools[backend.pool]
            for backend in self._fleet.backends
            if backend.pool in self._pools
        }
