"""Reload: the configuration is read again and replaces the one in use.

First it is read, validated and prepared completely, off the loop. Then one step of the loop swaps
it. A faulty configuration changes nothing. One reload runs at a time. All who ask meanwhile share
the next one, which reads the file after they asked.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import time
from typing import Final

from penstock.conf.issues import ConfigError, Issue
from penstock.conf.keypath import KeyPath
from penstock.conf.load import Loaded
from penstock.conf.settings import Settings
from penstock.proxy.data.configuration import Configuration, Draft, configure, draft
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.discovery.beside import beside
from penstock.proxy.discovery.operators import Operators
from penstock.proxy.errors.own import Draining
from penstock.proxy.reload.retirement import Retirement
from penstock.proxy.reload.source import Source
from penstock.proxy.wire.handshakes import HandshakeThreads
from penstock.proxy.wire.host import Names

# Section and key of each setting that needs a restart.
FIXED: Final = (
    ("listen", "host"),
    ("listen", "port"),
    ("listen", "reuse_port"),
    ("admin", "host"),
    ("admin", "port"),
    ("state", "dir"),
    ("log", "messages"),
)


def keep_fixed(new: Loaded, running: Loaded) -> tuple[Loaded, tuple[str, ...]]:
    """`new` with the running values of the settings that need a restart, and their changed keys."""
    settings = new.settings
    origins = dict(new.origins)
    waiting = []
    for section, key in FIXED:
        value = getattr(getattr(running.settings, section), key)
        wanted = getattr(settings, section)
        if getattr(wanted, key) != value:
            kept = wanted.model_copy(update={key: value})
            settings = settings.model_copy(update={section: kept})
            name = f"{section}.{key}"
            origins[name] = running.origins[name]
            waiting.append(name)
    return replace(new, settings=settings, origins=origins), tuple(waiting)


logger = logging.getLogger(__name__)

# Reading all files takes seconds at most: a tokenizer of 20 MB takes one.
READ_S: Final = 60.0

# The settings as they were read, the configuration of them and of what was found, keys that need a
# restart, and warnings.
Read = tuple[Settings, Draft, tuple[str, ...], tuple[Issue, ...]]


@dataclass(frozen=True, slots=True)
class Change:
    """The result of a reload: names of backends, and keys that need a restart."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    kept: int
    needs_restart: tuple[str, ...]


class Reload:
    """Reloads a data plane from `source`. `apply` puts a configuration in use. It cannot fail."""

    def __init__(
        self,
        source: Source,
        plane: DataPlane,
        retirement: Retirement,
        apply: Callable[[Configuration], None],
        names: Names,
        threads: HandshakeThreads,
        read_s: float = READ_S,
        merged: Callable[[Settings], Settings] = lambda settings: settings,
        operators: Operators | None = None,
    ) -> None:
        """`merged` adds the backends that were found. Also called in a thread."""
        self._merged = merged
        self._operators = operators or Operators()
        self._settings = plane.settings  # as they were read last
        self._source = source
        self._plane = plane
        self._retirement = retirement
        self._apply = apply
        self._names = names
        self._threads = threads
        self._read_s = read_s
        self._running = asyncio.Lock()
        self._next: asyncio.Task[Change] | None = None
        # Why the last reload failed, for people. Empty if it did not fail.
        self.failed: tuple[str, ...] = ()
        self.ended_s: float | None = None  # when the last one ended, by the data plane's clock
        # The changed keys that keep their old value until a restart.
        self.needs_restart: tuple[str, ...] = ()
        self._warned: frozenset[tuple[KeyPath, str]] = frozenset()

    async def __call__(self) -> Change:
        """Reload once. Reading begins after this call.

        Raises ConfigError with all errors, or Draining when the proxy is shutting down.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._in_turn())
            self._next.add_done_callback(_heard)
        return await asyncio.shield(self._next)  # others may wait for the same reload

    def warn(self, warnings: tuple[Issue, ...]) -> None:
        """Log the warnings of the configuration in use, each only once while it stays."""
        for each in warnings:
            if (each.path, each.problem) not in self._warned:
                logger.warning("configuration: %s", each)
        self._warned = frozenset((each.path, each.problem) for each in warnings)

    async def by_signal(self) -> None:
        """Reload after SIGHUP. The result goes to the log only."""
        if self._next is not None:
            return  # another reload is about to begin
        try:
            await self()
        except Exception:  # noqa: BLE001 - it was logged
            return

    async def _in_turn(self) -> Change:
        async with self._running:
            self._next = None
            try:
                change = await self._reload()
            except Draining:
                logger.warning("not reloaded, the proxy is shutting down")
                raise
            except ConfigError as error:
                self._plane.metrics.config_reload_success = False
                self._ended(*map(str, error.issues))
                for issue in self.failed:
                    logger.error("not reloaded: %s", issue)
                raise
            except Exception:
                self._plane.metrics.config_reload_success = False
                self._ended("an internal error of penstock; see its log")
                logger.exception("reload failed")
                raise
            self._plane.metrics.reloaded(time())
            self._ended()
            self.needs_restart = change.needs_restart
            logger.info(
                "reloaded added=%s removed=%s kept=%d needs_restart=%s",
                ",".join(change.added) or "-",
                ",".join(change.removed) or "-",
                change.kept,
                ",".join(change.needs_restart) or "-",
            )
            return change

    def _ended(self, *problems: str) -> None:
        self.failed, self.ended_s = problems, self._plane.now()

    async def _reload(self) -> Change:
        running = self._plane.configuration
        settings, new, needs_restart, warnings = await self._read_beside(running)
        if self._plane.draining:
            raise Draining
        self._settings = settings
        self._operators.drop_added()
        change = self.swap(new, needs_restart)
        self.warn(warnings)
        return change

    async def refresh(self) -> None:
        """Put what was found or added since in use. No file is read again."""
        async with self._running:
            if self._plane.draining:
                return
            running = self._plane.configuration
            new = await beside(
                lambda: draft(
                    self._merged(self._operators.merged(self._settings)),
                    *(running.origins, None, running.certificates),
                )
            )
            change = self.swap(new, self.needs_restart)
        if change.added or change.removed:
            logger.info(
                "other backends added=%s removed=%s kept=%d",
                ",".join(change.added) or "-",
                ",".join(change.removed) or "-",
                change.kept,
            )

    def swap(self, new: Draft, needs_restart: tuple[str, ...]) -> Change:
        """Put a configuration in use. One step of the loop: no request sees half of it."""
        running = self._plane.configuration
        before = dict(running.members)
        same_tokens = new.settings.tokens == running.settings.tokens
        after = configure(
            new,
            self._plane.loop,
            self._names,
            (*self._retirement.members, *before.items()),
            running.counting if same_tokens else None,
            running.fleet,
            self._plane.now,
            self._threads,
        )
        self._operators.apply(after.fleet.backends)
        self._apply(after)
        self._retirement.take(before.items())
        if running.counting is not None and running.counting is not after.counting:
            running.counting.close()
        used = set(after.fleet.backends)
        return Change(
            added=tuple(each.name for each in after.fleet.backends if each not in before),
            removed=tuple(each.name for each in before if each not in used),
            kept=len(used & before.keys()),
            needs_restart=needs_restart,
        )

    async def _read_beside(self, running: Configuration) -> Read:
        """Read in a thread for which neither a later reload nor the end of the process waits.

        Raises ConfigError. A file of a dead file server can keep the thread for ever.
        """
        reading = asyncio.ensure_future(beside(lambda: self._read(running)))
        done, _ = await asyncio.wait([reading], timeout=self._read_s)
        if done:
            return reading.result()
        reading.cancel()
        problem = f"reading the files took more than {self._read_s:g} s; does one not open?"
        raise ConfigError([Issue(str(self._source.path or ""), (), problem)])

    def _read(self, running: Configuration) -> Read:
        """Do everything that takes time. Runs in a thread."""
        loaded = self._source.load()
        renewed = loaded.settings.tokens != running.settings.tokens
        counter, certificates = self._source.files(loaded, counter=renewed)
        warnings = loaded.warnings
        loaded, needs_restart = keep_fixed(loaded, Loaded(running.settings, running.origins))
        settings = loaded.settings
        new = draft(self._merged(settings), loaded.origins, counter, certificates)
        return settings, new, needs_restart, warnings


def _heard(reload: "asyncio.Task[Change]") -> None:
    """Mark the exception as retrieved: nobody may wait for it any more, and it was logged."""
    if not reload.cancelled():
        reload.exception()
