"""What all sources have found, as a part of the configuration.

A source tells a list, and the list is swapped as a reload swaps it: backends that are named again
keep their connections and all that was learnt, new ones are probed first, and those that are gone
keep their streams. An answer that failed, or that is empty where a source cannot know better, keeps
the last list. Where all backends are replaced, the previous ones serve until a new one can.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import time
from typing import Final, Protocol

from penstock.conf.discover import DiscoverSettings
from penstock.conf.pools import BackendSettings, PoolSettings
from penstock.conf.settings import Settings
from penstock.proxy.discovery.cluster import Cluster
from penstock.proxy.discovery.dns_source import Cares, DnsSource
from penstock.proxy.discovery.file_source import FileSource
from penstock.proxy.discovery.found import Allowed, Entries, Found, Unusable
from penstock.proxy.discovery.kubernetes import KubernetesSource

logger = logging.getLogger(__name__)

# Changes within this time share one swap.
SWAP_S: Final = 0.25
# Where all are replaced at once, the previous ones serve until a new one can, but no longer.
KEPT_S: Final = 30.0
# Before a source or a swap that failed unexpectedly is tried again.
AGAIN_S: Final = 1.0
# A loss of more than this share at once is told.
LOSS: Final = 0.5
# So many faults of one answer are logged.
FAULTS_TOLD: Final = 3


class Source(Protocol):
    """Where the backends of one pool are found."""

    async def watch(self, tell: Callable[[Found | Unusable], None]) -> None: ...


def source_of(settings: DiscoverSettings, prefix: str) -> tuple[str, Source]:
    """The kind of a source, for people, and the source. `prefix`: of the names that it makes."""
    entries, kubernetes = Entries(Allowed(settings.allow), prefix), settings.kubernetes
    if kubernetes is not None:
        cluster = Cluster(kubernetes.api_url)
        return "kubernetes", KubernetesSource(kubernetes, entries, cluster, Random())
    if settings.dns is not None:
        return "dns", DnsSource(settings.dns, entries, Cares(settings.resolver))
    assert settings.file is not None
    return "file", FileSource(Path(settings.file), entries)


@dataclass(slots=True)
class Told:
    """What the source of one pool has told last."""

    settings: DiscoverSettings
    kind: str
    backends: tuple[BackendSettings, ...] = ()
    # The previous list, used until a backend of the present one serves.
    former: tuple[BackendSettings, ...] = ()
    former_until_s: float = 0.0
    since_s: dict[str, float] = field(default_factory=dict)  # since when each URL is there
    answered_s: float | None = None  # when it told a list last, by the data plane's clock
    problem: str = ""  # why it tells nothing now
    faults: tuple[str, ...] = ()  # of the last answer
    taken: frozenset[str] = frozenset()  # its names that others have, as told in the log
    first: asyncio.Event = field(default_factory=asyncio.Event)  # it has told something
    task: asyncio.Task[None] | None = None

    @property
    def used(self) -> tuple[BackendSettings, ...]:
        """The backends that are used, those of the present list first. No two share a name."""
        names = {each.name for each in self.backends}
        return (*self.backends, *[each for each in self.former if each.name not in names])

    def replace(
        self, backends: tuple[BackendSettings, ...], now_s: float, serving: Collection[str]
    ) -> None:
        """Take another list. If none of it was used before, what serves goes on for a while.

        A list that follows another one prolongs nothing.
        """
        before = {each.url: each for each in self.used}
        urls = {each.url for each in backends}
        if backends and before.keys().isdisjoint(urls):
            if not self.former:
                self.former_until_s = now_s + KEPT_S
            self.former = tuple([each for each in before.values() if each.url in serving])
        else:
            self.former = tuple([each for each in self.former if each.url not in urls])
        self.backends = backends
        if not backends:  # a whole list says that there is none
            self.former = ()


class Discovery:
    """Follows the sources of a configuration. `swap` puts what they found in use."""

    def __init__(
        self,
        now: Callable[[], float],
        serving: Callable[[], Collection[str]],
        source_of: Callable[[DiscoverSettings, str], tuple[str, Source]] = source_of,
        swap_s: float = SWAP_S,
    ) -> None:
        """`serving`: the URLs of the backends that can serve now."""
        self._now = now
        self._serving = serving
        self._source_of = source_of
        self._swap_s = swap_s
        self._swap: Callable[[], Awaitable[object]] | None = None
        self._told: dict[str, Told] = {}  # by pool
        self._holders: dict[str, str] = {}  # the pool of each name that was found and is used
        self._swapping: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def origin(self, pool: str, url: str) -> dict[str, object] | None:
        """Which source told of a backend, and since when, as JSON. None: none did."""
        told = self._told.get(pool)
        since_s = told.since_s.get(url) if told is not None else None
        if told is None or since_s is None:
            return None
        return {"source": told.kind, "since": round(time() - (self._now() - since_s), 3)}

    def listing(self) -> list[dict[str, object]]:
        """What each source has told, as JSON."""
        return [
            {
                "pool": pool,
                "source": kind,
                "backends": count,
                "left_out": len(self._told[pool].faults) + len(self._told[pool].taken),
                "age_s": round(age_s, 1) if age_s is not None else None,
                "problem": self._told[pool].problem or None,
            }
            for pool, kind, count, age_s in self.ages()
        ]

    def ages(self) -> Iterable[tuple[str, str, int, float | None]]:
        """By pool and kind of source: how many backends it told, and for how long its list may be
        stale. None: it told none. A source that works is asked all the time."""
        for pool, told in self._told.items():
            age_s = None
            if told.answered_s is not None:
                age_s = self._now() - told.answered_s if told.problem else 0.0
            yield pool, told.kind, len(told.backends), age_s

    def merged(self, settings: Settings) -> Settings:
        """These settings with the backends that were found. May be called in a thread."""
        if all(pool.discover is None for pool in settings.pools):
            return settings
        taken = {each.name for pool in settings.pools for each in pool.backends}
        # Whose name it is keeps it, whichever pool comes first.
        told = {pool: {each.name for each in told.used} for pool, told in self._told.items()}
        held = {n: pool for n, pool in self._holders.items() if n in told.get(pool, ())}
        holders: dict[str, str] = {}
        pools = [self._merged(pool, taken, held, holders) for pool in settings.pools]
        self._holders = holders
        return settings.model_copy(update={"pools": tuple(pools)})

    def _merged(
        self,
        pool: PoolSettings,
        taken: set[str],
        held: Mapping[str, str],
        holders: dict[str, str],
    ) -> PoolSettings:
        told = self._told.get(pool.name)
        if told is None or pool.discover is None:
            return pool
        listed = {each.url for each in pool.backends}
        found = [each for each in told.used if each.url not in listed]
        names = [each.name for each in found]
        both = frozenset(
            [name for name in names if name in taken or held.get(name, pool.name) != pool.name]
        )
        for name in sorted(both - told.taken)[:FAULTS_TOLD]:
            logger.warning("discovery pool=%s: the name %s is taken", pool.name, name)
        told.taken = both
        added = [each for each in found if each.name not in both]
        taken.update(each.name for each in added)
        holders.update(dict.fromkeys([each.name for each in added], pool.name))
        return pool.model_copy(update={"backends": (*pool.backends, *added)})

    def use(self, settings: Settings) -> None:
        """Follow the sources that these settings name, and no others."""
        wanted = {pool.name: pool.discover for pool in settings.pools if pool.discover is not None}
        for name in self._told.keys() - wanted.keys():
            self._end(self._told.pop(name))
        for name, discover in wanted.items():
            before = self._told.get(name)
            if before is None or before.settings != discover:
                kind, source = self._source_of(discover, f"{name}.")
                told = self._told[name] = Told(discover, kind)
                if before is not None:
                    self._end(before)
                    told.former, told.former_until_s = before.used, self._now() + KEPT_S
                told.task = asyncio.create_task(self._follow(name, told, source))

    async def start(self, swap: Callable[[], Awaitable[object]], within_s: float) -> None:
        """Wait until all sources have told something, but no longer. From then on `swap` is called
        when they tell something else."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                for told in self._told.values():
                    await told.first.wait()
        if self._changed.is_set():
            self._changed.clear()
            await swap()
        self._swap = swap
        self._swapping = asyncio.create_task(self._swap_on())

    async def stop(self) -> None:
        tasks = [each.task for each in self._told.values()] + [self._swapping]
        for told in self._told.values():
            self._end(told)
        if self._swapping is not None:
            self._swapping.cancel()
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)

    def _end(self, told: Told) -> None:
        if told.task is not None:
            told.task.cancel()

    async def _follow(self, pool: str, told: Told, source: Source) -> None:
        while True:
            try:
                await source.watch(lambda answer: self._take(pool, told, answer))
            except Exception:  # a fault of ours must not end it for ever
                logger.exception("discovery failed pool=%s source=%s", pool, told.kind)
                self._take(pool, told, Unusable("an internal error of penstock; see its log"))
            await asyncio.sleep(AGAIN_S)

    def _take(self, pool: str, told: Told, answer: Found | Unusable) -> None:
        """Take an answer. A list that is the same, or none, changes nothing."""
        told.first.set()
        if isinstance(answer, Unusable):
            self._failed(pool, told, str(answer))
            return
        if answer.faults != told.faults:
            for fault in answer.faults[:FAULTS_TOLD]:
                logger.warning("discovery pool=%s source=%s: %s", pool, told.kind, fault)
        told.faults = answer.faults
        if not answer.backends and not answer.whole:
            self._failed(pool, told, "it lists no backend")
            return
        now_s = told.answered_s = self._now()
        if told.problem:
            logger.info("discovery works again pool=%s source=%s", pool, told.kind)
            told.problem = ""
        if answer.backends == told.backends and not told.former:
            return
        before = {each.url for each in told.backends}
        after = {each.url for each in answer.backends}
        lost = len(before - after)
        if lost > LOSS * len(before):
            logger.warning(
                "discovery lost most backends pool=%s source=%s lost=%d left=%d",
                *(pool, told.kind, lost, len(before) - lost),
            )
        told.since_s = {url: told.since_s.get(url, now_s) for url in after}
        if answer.backends != told.backends:
            told.replace(answer.backends, now_s, frozenset(self._serving()))
            self._changed.set()

    def _failed(self, pool: str, told: Told, problem: str) -> None:
        if problem != told.problem:
            kept = f"; the last list stays, of {len(told.used)}" if told.used else ""
            logger.warning("discovery pool=%s source=%s: %s%s", pool, told.kind, problem, kept)
        told.problem = problem

    async def _swap_on(self) -> None:
        while True:
            await self._wait()
            if not self._changed.is_set():
                continue
            self._changed.clear()
            assert self._swap is not None
            try:
                await self._swap()
            except Exception:  # such as no descriptor left: tried again
                logger.exception("found backends were not put in use")
                self._changed.set()
                await asyncio.sleep(AGAIN_S)
            await asyncio.sleep(self._swap_s)

    async def _wait(self) -> None:
        """Wait for a change: a source tells another list, or a new backend serves."""
        former = [each for each in self._told.values() if each.former]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._swap_s if former else None):
                await self._changed.wait()
        serving = frozenset(self._serving()) if former else frozenset()
        for told in former:
            new = any(each.url in serving for each in told.backends)
            # A source that has told nothing yet, or fails, replaces nobody.
            over = self._now() >= told.former_until_s and bool(told.backends)
            if told.former and (new or over):
                told.former = ()
                self._changed.set()
