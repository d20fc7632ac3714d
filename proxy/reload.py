"""Reload: the configuration is read again and put in the place of the one in use.

It is read, validated and computed completely first, off the loop; then one step
of the loop swaps it. Whatever is wrong with it changes nothing. One reload runs
at a time; whoever asks meanwhile is told of the one that follows, which reads
what stands in the file by then.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from conf.fixed import keep_fixed
from conf.issues import ConfigError, Issue
from conf.keypath import KeyPath
from conf.load import Loaded
from proxy.configuration import Configuration, Draft, configure, draft
from proxy.errors import Draining
from proxy.host import Names
from proxy.plane import DataPlane
from proxy.retirement import Retirement
from proxy.source import Source

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """What a reload did: names of backends, and keys that wait for a restart."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    kept: int
    needs_restart: tuple[str, ...]


class Reload:
    """Reloads a data plane from `source`. `apply` puts a configuration in use; it cannot fail."""

    def __init__(
        self,
        source: Source,
        plane: DataPlane,
        retirement: Retirement,
        apply: Callable[[Configuration], None],
        names: Names,
    ) -> None:
        self._source = source
        self._plane = plane
        self._retirement = retirement
        self._apply = apply
        self._names = names
        self._running = asyncio.Lock()
        self._next: asyncio.Task[Change] | None = None
        # Why the last one failed, for people; empty when it did not.
        self.failed: tuple[str, ...] = ()
        self._warned: frozenset[tuple[KeyPath, str]] = frozenset()

    async def __call__(self) -> Change:
        """Reload once, beginning no sooner than now.

        Raises ConfigError with all that is wrong, Draining when it is too late.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._in_turn())
            self._next.add_done_callback(_heard)
        return await asyncio.shield(self._next)  # others may wait for the same

    def warn(self, warnings: tuple[Issue, ...]) -> None:
        """Log what a configuration in use probably does not mean, once while that stays."""
        for each in warnings:
            if (each.path, each.problem) not in self._warned:
                logger.warning("configuration: %s", each)
        self._warned = frozenset((each.path, each.problem) for each in warnings)

    async def by_signal(self) -> None:
        """Reload for somebody who reads only the log."""
        if self._next is not None:
            return  # one is to begin
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
                self._plane.metrics.reload_success = False
                self.failed = tuple(map(str, error.issues))
                for issue in self.failed:
                    logger.error("not reloaded: %s", issue)
                raise
            except Exception:
                self._plane.metrics.reload_success = False
                self.failed = ("a fault of penstock's own; the log tells more",)
                logger.exception("reload failed")
                raise
            self._plane.metrics.reload_success = True
            self.failed = ()
            logger.info(
                "reloaded added=%s removed=%s kept=%d needs_restart=%s",
                ",".join(change.added) or "-",
                ",".join(change.removed) or "-",
                change.kept,
                ",".join(change.needs_restart) or "-",
            )
            return change

    async def _reload(self) -> Change:
        running = self._plane.configuration
        new, needs_restart, warnings = await asyncio.to_thread(self._read, running)
        if self._plane.draining:
            raise Draining
        # From here to the end there is no await: the swap.
        before = dict(running.members)
        same_tokens = new.settings.tokens == running.settings.tokens
        after = configure(
            new,
            self._plane.loop,
            self._names,
            (*self._retirement.members, *before.items()),
            running.counting if same_tokens else None,
        )
        self._apply(after)
        self._retirement.take(before.items())
        if running.counting is not None and running.counting is not after.counting:
            running.counting.close()
        self.warn(warnings)
        used = set(after.fleet.backends)
        return Change(
            added=tuple(each.name for each in after.fleet.backends if each not in before),
            removed=tuple(each.name for each in before if each not in used),
            kept=len(used & before.keys()),
            needs_restart=needs_restart,
        )

    def _read(self, running: Configuration) -> tuple[Draft, tuple[str, ...], tuple[Issue, ...]]:
        """All that takes time; runs in a thread."""
        loaded = self._source.load()
        renewed = loaded.settings.tokens != running.settings.tokens
        counter, certificates = self._source.files(loaded, counter=renewed)
        warnings = loaded.warnings
        loaded, needs_restart = keep_fixed(loaded, Loaded(running.settings, running.origins))
        new = draft(loaded.settings, loaded.origins, counter, certificates)
        return new, needs_restart, warnings


def _heard(reload: "asyncio.Task[Change]") -> None:
    """Whoever asked may have left: what it raised was logged."""
    if not reload.cancelled():
        reload.exception()
