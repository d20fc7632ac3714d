"""Where canaries stand, in a file, so that a restart does not begin them anew.

It is written after each move, and once a minute for the keys that were seen, by one thread at a
time: the newest state is the last one written. A write that failed is tried again soon. The file is
replaced as a whole: whoever is killed leaves the old one.
"""

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import Final

import orjson

from penstock.proxy.data.canaries import Canaries

logger = logging.getLogger(__name__)

FILE: Final = "canaries.json"
PERIOD_S: Final = 1.0
KEYS_S: Final = 60.0
# After a failed write. The time begins at PERIOD_S and doubles.
RETRY_MAX_S: Final = 60.0


class CanaryFile:
    """The file in the folder `state.dir`."""

    def __init__(self, folder: Path, canaries: Canaries) -> None:
        self._path = folder / FILE
        self._canaries = canaries
        self._failing = False
        self._stopping = asyncio.Event()
        self.wait_s = PERIOD_S  # until the next look

    def read(self) -> None:
        """Tell the canaries where they stood. A file that cannot be read begins them anew."""
        try:
            known = orjson.loads(self._path.read_bytes())
            self._canaries.resume(known if isinstance(known, dict) else {})
        except FileNotFoundError:
            return
        except (OSError, orjson.JSONDecodeError) as error:
            logger.warning("canaries begin anew: %s cannot be read: %s", self._path, error)

    async def watch(self) -> None:
        """Write now and then until `stop`, and then once more.

        It is not cancelled: its thread would go on, and might put an older state in place.
        """
        loop = asyncio.get_running_loop()
        written_s, stopping = loop.time(), False
        while not stopping:
            stopping = self._stopping.is_set()
            if stopping or self._canaries.changed or loop.time() - written_s >= KEYS_S:
                written_s = loop.time()
                await self.write()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self.wait_s)

    def stop(self) -> None:
        """No canary moves any more."""
        self._stopping.set()

    async def write(self) -> None:
        """Write the state as it is now. After a failure it stays to be written."""
        canaries = self._canaries
        canaries.changed = False
        try:
            await asyncio.to_thread(self._replace, orjson.dumps(canaries.to_state()))
        except OSError as error:
            canaries.changed = True
            if not self._failing:
                logger.warning("canaries are not kept: %s", error)
            self.wait_s = min(2 * self.wait_s, RETRY_MAX_S) if self._failing else PERIOD_S
            self._failing = True
            return
        if self._failing:
            logger.info("canaries are kept again")
        self._failing, self.wait_s = False, PERIOD_S

    def _replace(self, state: bytes) -> None:
        """Put a new file in place. Raises OSError."""
        if state == b"{}" and not self._path.exists():
            return
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        new = self._path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(state)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
