"""Reloads when the configuration file changes, if the configuration says so.

The path is resolved at each look, so a ConfigMap that Kubernetes swaps is seen. A file that is half
written is refused as by any reload, and read again when it has changed once more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from penstock.conf.files import file_state
from penstock.proxy.discovery.beside import beside

LOOK_S: Final = 1.0


class ConfigWatch:
    """Looks at the file each second. `reload` reads it, and logs what is wrong."""

    def __init__(self, path: Path | None, reload: Callable[[], Awaitable[object]]) -> None:
        self._path = path
        self._reload = reload
        self._state = file_state(path) if path is not None else None  # as the start has read it
        self._task: asyncio.Task[None] | None = None

    def use(self, *, watch: bool) -> None:
        """Look from now on, or no more."""
        if not watch:
            self.stop()
        elif self._task is None and self._path is not None:
            self._task = asyncio.create_task(self._look(self._path))

    def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _look(self, path: Path) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            state = await beside(lambda: file_state(path))
            if state is not None and state != self._state:
                self._state = state
                await self._reload()
