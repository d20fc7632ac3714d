"""Where canaries stand, in a file, so that a restart does not begin them anew.

It is written after each move, and once a minute for the keys that were seen. The file is replaced
as a whole: whoever is killed leaves the old one.
"""

import asyncio
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


class CanaryFile:
    """The file in the folder `state.dir`."""

    def __init__(self, folder: Path, canaries: Canaries) -> None:
        self._path = folder / FILE
        self._canaries = canaries
        self._failing = False

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
        """Write until it is cancelled, and then once more."""
        written_s = 0.0
        loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(PERIOD_S)
                if self._canaries.changed or loop.time() - written_s >= KEYS_S:
                    written_s = loop.time()
                    await asyncio.to_thread(self._write, self._state())
        finally:
            self._write(self._state())

    def _state(self) -> bytes:
        """Some KB for each canary."""
        self._canaries.changed = False
        return orjson.dumps(self._canaries.to_state())

    def _write(self, state: bytes) -> None:
        """Replace the file."""
        if state == b"{}" and not self._path.exists():
            return
        new = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(state)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            if not self._failing:
                logger.warning("canaries are not kept: %s cannot be written: %s", new, error)
            self._failing = True
            return
        self._failing = False
