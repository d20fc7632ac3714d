"""Has backends load the adapters that routes name, and tells the requests that wait for that.

A load is a task beside the requests, on a connection of its own. What waits is bounded as all
requests are, by `limits.connections` and the room for bodies, and each of it by WAIT_S.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Final

from penstock.balancing.adapters import AdapterLoads, Place, Step
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.fair_table import put_last
from penstock.health.probes import Outcome
from penstock.proxy.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

# The longest wait of a request: two loads that hang take as long.
WAIT_S: Final = 120.0
# Of so many clients it is known when they had their last load.
CLIENTS_MAX: Final = 1_024
# How many requests are told in one turn of the loop. Each then chooses its backend.
TURN_MAX: Final = 32

# Asks a backend for the adapter of this name and path.
Load = Callable[[Backend, str, str], Coroutine[None, None, Outcome]]


class Waiter:
    """One request that waits. `told` is called once, unless it leaves: `late` after WAIT_S."""

    __slots__ = ("client", "place", "since_s", "timer", "told")

    def __init__(
        self, place: Place, client: str, since_s: float, told: Callable[[bool], None]
    ) -> None:
        """`since_s`: when it began to wait, also if it was told before and waits again."""
        self.place = place
        self.client = client
        self.since_s = since_s
        self.told = told
        self.timer: asyncio.TimerHandle | None = None


class Adapters:
    """The loads of a process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        loads: AdapterLoads,
        queued: Callable[[str], int],
        metrics: Metrics,
        now: Callable[[], float],
        load: Load,
    ) -> None:
        """`queued`: how many requests wait for room in a pool."""
        self._loop = loop
        self._loads = loads
        self._queued = queued
        self._metrics = metrics
        self._now = now
        self._load = load
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[Waiter, None] = {}
        self._untold: deque[Waiter] = deque()
        self._telling = False  # one of them, whose turn it is
        self.paths: Mapping[Place, str] = {}  # those that routes name
        self._loaded_s: dict[str, float] = {}  # when a client had its last load

    def follow(self, paths: Mapping[Place, str]) -> None:
        """Take the adapters of a new configuration. What waits looks where it goes now."""
        self.paths = paths
        self._loads.follow(paths)
        self._tell(list(self._waiting))

    def wait(
        self,
        ask: Ask,
        tried: Collection[Backend],
        by_s: float,
        now_s: float,
        told: Callable[[bool], None],
    ) -> Waiter | None:
        """Begin a load if one is due. None: the request need not wait.

        Raises NotLoaded, and OverContext. `by_s`: when it is told at the latest.
        """
        if not self.begin(ask, now_s, tried).waits:
            return None
        waiter = Waiter((ask.pool, ask.model), ask.client, by_s - WAIT_S, told)
        waiter.timer = self._loop.call_later(by_s - now_s, self._late, waiter)
        self._waiting[waiter] = None
        if self._comes_last:
            self._tell([waiter])
        return waiter

    def begin(self, ask: Ask, now_s: float, tried: Collection[Backend] = ()) -> Step:
        """Begin a load if one is due. Nobody need wait here for it. Raises as `wait` does.

        The free places are for those that are told of them now, and for others after them.
        """
        last = self._comes_last
        step = self._loads.look(ask, now_s, tried, queued=self._queued(ask.pool) > 0, dry=last)
        if step.begins is not None and not last:
            self._begin(ask, step.begins)
        return step

    def foreseen(self, ask: Ask, now_s: float, tried: Collection[Backend] = ()) -> Step:
        """What `wait` would do. Changes nothing. Raises NotLoaded, and OverContext."""
        if ask.response_id is not None or (ask.pool, ask.model) not in self.paths:
            return Step()
        return self._loads.look(ask, now_s, tried, queued=self._queued(ask.pool) > 0, dry=True)

    def leave(self, waiter: Waiter) -> None:
        """Nobody waits there any more."""
        self._waiting.pop(waiter, None)
        waiter.told = _nothing
        if waiter.timer is not None:
            waiter.timer.cancel()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    @property
    def _comes_last(self) -> bool:
        """Whether who asks now has to wait for those that are told of free places."""
        return bool(self._untold) and not self._telling

    def _begin(self, ask: Ask, backend: Backend) -> None:
        place = self._loads.begin(ask, backend)
        put_last(self._loaded_s, ask.client, self._now(), CLIENTS_MAX)
        task = self._loop.create_task(self._run(place, backend, self.paths[place]))
        self._tasks.add(task)  # the loop itself does not keep tasks alive
        task.add_done_callback(self._tasks.discard)

    async def _run(self, place: Place, backend: Backend, path: str) -> None:
        pool, name = place[0], place[1] or ""
        began_s = self._now()
        try:
            outcome = await self._load(backend, name, path)
        except Exception:
            logger.exception("loading an adapter failed name=%s adapter=%s", backend.name, name)
            outcome = Outcome("error")
        if outcome.passed and not self._loads.is_wanted(place):
            outcome = Outcome("old_path")  # a reload has changed it meanwhile
        now_s = self._now()
        rest_s = self._loads.ended(place, now_s, loaded=outcome.passed)
        self._metrics.adapter_loads.add(pool, "ok" if outcome.passed else "failed")
        if outcome.passed:
            logger.info(
                "adapter loaded name=%s adapter=%s took_s=%.2f", backend.name, name, now_s - began_s
            )
        else:
            logger.warning(
                "adapter not loaded name=%s adapter=%s reason=%s rests_s=%.0f",
                backend.name,
                name,
                outcome.reason,
                rest_s,
            )
        # Others may have waited for a place only. Whose client had no load for the longest time is
        # first; who had none counts from when it began to wait, or new names would always be first.
        loading, last_s = self._loads.is_loading, self._loaded_s
        in_turn = sorted(self._waiting, key=lambda each: last_s.get(each.client, each.since_s))
        self._tell([each for each in in_turn if not loading(each.place)])

    def _tell(self, waiters: list[Waiter]) -> None:
        for each in waiters:
            del self._waiting[each]
        if waiters and not self._untold:
            self._loop.call_soon(self._tell_some)
        self._untold.extend(waiters)

    def _tell_some(self) -> None:
        self._telling = True
        try:
            for _ in range(min(TURN_MAX, len(self._untold))):
                self._end(self._untold.popleft(), late=False)
        finally:
            self._telling = False
            if self._untold:  # a fault at one request is not the end of others
                self._loop.call_soon(self._tell_some)

    def _late(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)
        self._end(waiter, late=True)

    def _end(self, waiter: Waiter, *, late: bool) -> None:
        tell = waiter.told
        self.leave(waiter)
        tell(late)


def _nothing(late: bool) -> None:
    """It has left."""


async def cannot_load(backend: Backend, name: str, path: str) -> Outcome:
    """The default when nobody asks backends."""
    return Outcome("unwatched")
