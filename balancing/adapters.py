"""LoRA adapters that engines load at their first use: which backend is asked for one, and when.

A backend has an adapter once it lists it. A request whose adapter no backend has waits for one
load, at the backend that the policy would choose for it. Further backends load it only when those
that have it have much to do: a load takes memory and time of an engine, and may throw out an
adapter that others use. Nothing is unloaded here: engines do that with those used longest ago.

A backend that failed to load an adapter rests, each time for twice as long. Those that have failed
least are asked first, so that broken ones keep it from nobody. After a few failures in a row the
adapter rests, too. So neither many requests nor many backends make many loads.
"""

from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import Final, NamedTuple

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.fleet import Fleet
from penstock.balancing.gate import Gate

# How many loads run at once: in all, for requests of one client, and at one backend. An engine
# loads one after the other. The second place there is for another client, if the first load hangs.
ALL_MAX: Final = 16
CLIENT_MAX: Final = 4
BACKEND_MAX: Final = 2
# A backend with fewer requests than this has little to do: an engine runs so many together for
# hardly more than the time of one.
BUSY_REQUESTS: Final = 8
# How long a backend rests after a failed load. The time doubles with each one that follows.
REST_S: Final = 1.0
# So many loads in a row may fail, where no backend has the adapter, before it rests itself.
FAILURES_MAX: Final = 4
REST_MAX_S: Final = 60.0

# The name of a pool, and that of the adapter.
Place = tuple[str, str | None]


class NotLoaded(Exception):
    """No backend has the adapter, and none is asked for it before `retry_after_s` is over."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__()
        self.retry_after_s = retry_after_s


class Step(NamedTuple):
    """What comes next for a request. `begins`: the backend that is to load its adapter."""

    waits: bool = False
    begins: Backend | None = None


class _Adapter:
    """One adapter in one pool."""

    def __init__(self) -> None:
        self.loading: Backend | None = None
        self.first = True  # whether no backend had it when that began
        self.path = ""  # what is loaded
        self.client = ""  # whose request made it load
        self.failures = 0  # loads in a row that failed while no backend had it
        self.failed: dict[Backend, int] = {}  # how many in a row failed at a backend
        self.rests: dict[Backend, float] = {}  # until when a backend is not asked again
        self.until_s = -inf  # until when no backend is


class AdapterLoads:
    """All loads of a fleet. `paths`: the adapters that routes name."""

    def __init__(self, gate: Gate, fleet: Callable[[], Fleet]) -> None:
        self._gate = gate
        self._fleet = fleet
        self.paths: Mapping[Place, str] = {}
        self._adapters: dict[Place, _Adapter] = {}
        self._running: dict[Place, _Adapter] = {}

    def follow(self, paths: Mapping[Place, str]) -> None:
        """Take other adapters. What runs goes on, and counts until its end."""
        members = set(self._fleet().backends)
        kept = {}
        for place, adapter in self._adapters.items():
            if self.paths.get(place) == paths.get(place) or place in self._running:
                rests = adapter.rests.items()
                adapter.rests = {each: at_s for each, at_s in rests if each in members}
                counts = adapter.failed.items()
                adapter.failed = {each: number for each, number in counts if each in members}
                kept[place] = adapter
        self.paths, self._adapters = paths, kept

    def look(
        self,
        ask: Ask,
        now_s: float,
        tried: Collection[Backend] = (),
        *,
        queued: bool = False,
        dry: bool = False,
    ) -> Step:
        """What comes next for a request of one of `paths`. Raises NotLoaded, and OverContext.

        `queued`: others wait for room in its pool. `dry`: the policy only says so.
        """
        pool = self._fleet().pool(ask.pool)
        able = [each for each in pool.backends if each.fit and each not in tried] if pool else []
        having = [each for each in able if each.serves(ask.model)]
        if not able or (having and not queued and not _all_busy(having)):
            return Step()
        adapter = self._adapters.get((ask.pool, ask.model)) or _Adapter()
        if not having:
            return self._first(ask, adapter, able, now_s, dry=dry)
        return self._further(ask, adapter, able, having, now_s, dry=dry)

    def begin(self, ask: Ask, backend: Backend) -> Place:
        """A backend is asked now."""
        place = ask.pool, ask.model
        adapter = self._adapters.setdefault(place, _Adapter())
        assert adapter.loading is None, "one load of an adapter at a time"
        adapter.loading, adapter.client = backend, ask.client
        pool = self._fleet().pool(ask.pool)
        adapter.first = pool is None or not [
            each for each in pool.backends if each.fit and each.serves(ask.model)
        ]
        adapter.path = self.paths[place]
        self._running[place] = adapter
        return place

    def ended(self, place: Place, now_s: float, *, loaded: bool) -> float:
        """A load is over. Returns for how long the backend is not asked again.

        It says nothing of the adapter if a reload has given that another path.
        """
        adapter = self._running.pop(place)
        backend, adapter.loading = adapter.loading, None
        assert backend is not None
        if not self._is_wanted(place, adapter):
            self._adapters.pop(place, None)
            return 0.0
        if loaded:
            adapter.failures, adapter.until_s = 0, -inf
            adapter.rests.pop(backend, None)
            adapter.failed.pop(backend, None)
            return 0.0
        failed = adapter.failed[backend] = adapter.failed.get(backend, 0) + 1
        rest_s = _rest_s(failed)
        adapter.rests[backend] = now_s + rest_s
        if adapter.first:
            adapter.failures += 1
            if adapter.failures >= FAILURES_MAX:
                adapter.until_s = now_s + _rest_s(adapter.failures - FAILURES_MAX + 1)
        return rest_s

    def is_loading(self, place: Place) -> bool:
        return place in self._running

    def is_wanted(self, place: Place) -> bool:
        """Whether a load that runs is of the path that routes name now."""
        return self._is_wanted(place, self._running[place])

    def _is_wanted(self, place: Place, adapter: _Adapter) -> bool:
        return self.paths.get(place) == adapter.path

    def _first(
        self, ask: Ask, adapter: _Adapter, able: list[Backend], now_s: float, *, dry: bool
    ) -> Step:
        """The step of a request that no backend can serve yet. It waits only if a load runs."""
        if adapter.loading is not None:
            return Step(waits=True)
        rested = [each for each in able if adapter.rests.get(each, -inf) <= now_s]
        if now_s < adapter.until_s or not rested:
            again_s = min([adapter.rests.get(each, now_s) for each in able])
            raise NotLoaded(max(adapter.until_s, again_s) - now_s)
        least = min([adapter.failed.get(each, 0) for each in rested])
        sound = [each for each in rested if adapter.failed.get(each, 0) == least]
        places = self._with_places(ask, sound)
        return Step(True, self._choice(ask, places, now_s, dry=dry) if places else None)

    def _further(
        self,
        ask: Ask,
        adapter: _Adapter,
        able: list[Backend],
        having: list[Backend],
        now_s: float,
        *,
        dry: bool,
    ) -> Step:
        """The same where some have it: it goes there, and one more may be asked beside that."""
        if adapter.loading is not None or now_s < adapter.until_s:
            return Step()
        others = [each for each in able if each not in having]
        others = [each for each in others if adapter.rests.get(each, -inf) <= now_s]
        places = self._with_places(ask, others)
        if not places:
            return Step()
        least = min([inf if each.full else each.requests_in_flight for each in having])
        chosen = self._choice(ask, places, now_s, dry=dry)
        return Step(begins=chosen if 2 * chosen.requests_in_flight < least else None)

    def _with_places(self, ask: Ask, backends: list[Backend]) -> list[Backend]:
        running = self._running.values()
        own = [each.loading for each in running if each.client == ask.client]
        if len(running) >= ALL_MAX or len(own) >= CLIENT_MAX:
            return []
        busy = [each.loading for each in running]
        return [each for each in backends if busy.count(each) < BACKEND_MAX and each not in own]

    def _choice(self, ask: Ask, among: list[Backend], now_s: float, *, dry: bool) -> Backend:
        """Where the policy would send it, if all of these had its adapter."""
        pool = self._fleet().pool(ask.pool)
        assert pool is not None
        others = [each for each in pool.backends if each not in among]
        any_model = ask.changed(model=None, response_id=None)
        return self._gate.look(any_model, now_s, others, dry=dry).chosen


def _rest_s(failures: int) -> float:
    rest_s: float = REST_S * 2.0 ** min(failures - 1, 10)
    return min(REST_MAX_S, rest_s)


def _all_busy(backends: list[Backend]) -> bool:
    quiet = [each for each in backends if not each.full and each.requests_in_flight < BUSY_REQUESTS]
    return not quiet
