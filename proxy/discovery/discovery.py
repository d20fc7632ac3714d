"""What all sources have found, as a part of the configuration.

A source tells a list, and the list is swapped as a reload swaps it: backends that are named again
keep their connections and all that was learnt, new ones are probed first, and those that are gone
keep their streams. An answer that failed, or that is empty where a source cannot know better, keeps
the last list.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
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

# Changes of so long are swapped together.
SWAP_S: Final = 0.2
# Where all are replaced at once, the former ones serve until a new one can, but no longer.
KEPT_S: Final = 30.0
# A loss of more than this share at once is told.
LOSS: Final = 0.5
# So many faults of one answer are logged.
FAULTS_TOLD: Final = 3


class Source(Protocol):
    """Where the backends of one pool are found."""

    async def watch(self, tell: Callable[[Found | Unusable], None]) -> None: ...


def source_of(settings: DiscoverSettings) -> tuple[str, Source]:
    """The kind of a source, for people, and the source."""
    entries, kubernetes = Entries(Allowed(settings.allow)), settings.kubernetes
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
    former: tuple[BackendSettings, ...] = ()  # all were replaced, and no new one serves yet
    former_until_s: float = 0.0
    since_s: dict[str, float] = field(default_factory=dict)  # since when each name is there
    answered_s: float | None = None  # when it told a list last, by the data plane's clock
    problem: str = ""  # why it tells nothing now
    first: asyncio.Event = field(default_factory=asyncio.Event)  # it has told something
    task: asyncio.Task[None] | None = None


class Discovery:
    """Follows the sources of a configuration. `swap` puts what they found in use."""

    def __init__(
        self,
        now: Callable[[], float],
        serves: Callable[[str], bool],
        source_of: Callable[[DiscoverSettings], tuple[str, Source]] = source_of,
        swap_s: float = SWAP_S,
    ) -> None:
        """`serves`: whether the backend of this name can serve now."""
        self._now = now
        self._serves = serves
        self._source_of = source_of
        self._swap_s = swap_s
        self._swap: Callable[[], Awaitable[object]] | None = None
        self._told: dict[str, Told] = {}  # by pool
        self._swapping: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def origin(self, pool: str, backend: str) -> dict[str, object] | None:
        """Which source told of a backend, and since when, as JSON. None: none did."""
        told = self._told.get(pool)
        since_s = told.since_s.get(backend) if told is not None else None
        if told is None or since_s is None:
            return None
        return {"source": told.kind, "since": round(time() - (self._now() - since_s), 3)}

    def listing(self) -> list[dict[str, object]]:
        """What each source has told, as JSON."""
        return [
            {
                "pool": pool,
                "source": told.kind,
                "backends": len(told.backends),
                "age_s": round(age_s, 1) if (age_s := self._age_s(told)) is not None else None,
                "problem": told.problem or None,
            }
            for pool, told in self._told.items()
        ]

    def ages(self) -> list[tuple[str, str, int, float | None]]:
        """By pool and kind of source: how many backends it told, and how long ago. None: never."""
        return [
            (pool, told.kind, len(told.backends), self._age_s(told))
            for pool, told in self._told.items()
        ]

    def _age_s(self, told: Told) -> float | None:
        """For how long its list may be stale. A source that works is asked all the time."""
        if told.answered_s is None:
            return None
        return self._now() - told.answered_s if told.problem else 0.0

    def merged(self, settings: Settings) -> Settings:
        """These settings with the backends that were found. May be called in a thread."""
        if all(pool.discover is None for pool in settings.pools):
            return settings
        taken = {each.name for pool in settings.pools for each in pool.backends}
        pools = [self._merged(pool, taken) for pool in settings.pools]
        return settings.model_copy(update={"pools": tuple(pools)})

    def _merged(self, pool: PoolSettings, taken: set[str]) -> PoolSettings:
        told = self._told.get(pool.name)
        if told is None or told.settings != pool.discover:
            return pool
        listed = {each.url for each in pool.backends}
        added = []
        for each in (*told.backends, *told.former):
            if each.name in taken and each.url not in listed:
                logger.warning("discovery pool=%s: the name %s is taken", pool.name, each.name)
            elif each.url not in listed:
                added.append(each)
        taken.update(each.name for each in added)
        return pool.model_copy(update={"backends": (*pool.backends, *added)})

    def use(self, settings: Settings) -> None:
        """Follow the sources that these settings name, and no others."""
        wanted = {pool.name: pool.discover for pool in settings.pools if pool.discover is not None}
        for name, told in list(self._told.items()):
            if wanted.get(name) != told.settings:
                self._end(self._told.pop(name))
        for name, discover in wanted.items():
            if name not in self._told:
                kind, source = self._source_of(discover)
                told = self._told[name] = Told(discover, kind)
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
            except Exception:
                logger.exception("discovery failed pool=%s source=%s", pool, told.kind)
                self._take(pool, told, Unusable("an internal error of penstock; see its log"))
            await asyncio.sleep(1.0)

    def _take(self, pool: str, told: Told, answer: Found | Unusable) -> None:
        """Take an answer. A list that is the same, or none, changes nothing."""
        told.first.set()
        if isinstance(answer, Unusable):
            self._failed(pool, told, str(answer))
            return
        for fault in answer.faults[:FAULTS_TOLD]:
            logger.warning("discovery pool=%s source=%s: %s", pool, told.kind, fault)
        if not answer.backends and not answer.whole:
            self._failed(pool, told, "it lists no backend")
            return
        now_s = told.answered_s = self._now()
        if told.problem:
            logger.info("discovery works again pool=%s source=%s", pool, told.kind)
            told.problem = ""
        before = {each.name for each in told.backends}
        after = {each.name for each in answer.backends}
        lost = len(before - after)
        if lost > LOSS * len(before):
            logger.warning(
                "discovery lost most backends pool=%s source=%s lost=%d left=%d",
                *(pool, told.kind, lost, len(before) - lost),
            )
        told.since_s = {name: told.since_s.get(name, now_s) for name in after}
        if answer.backends != told.backends:
            urls = {each.url for each in answer.backends}
            if urls and urls.isdisjoint(each.url for each in told.backends):
                told.former, told.former_until_s = told.backends, now_s + KEPT_S
            told.backends = answer.backends
            self._changed.set()

    def _failed(self, pool: str, told: Told, problem: str) -> None:
        if problem != told.problem:
            kept = f"; the last list stays, of {len(told.backends)}" if told.backends else ""
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
            except Exception:
                logger.exception("found backends were not put in use")
            await asyncio.sleep(self._swap_s)

    async def _wait(self) -> None:
        """Wait for a change: a source tells another list, or a new backend serves."""
        former = [each for each in self._told.values() if each.former]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._swap_s if former else None):
                await self._changed.wait()
        for told in former:
            new = any(self._serves(each.name) for each in told.backends)
            if new or self._now() >= told.former_until_s:
                told.former = ()
                self._changed.set()
