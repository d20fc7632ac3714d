"""What survives a restart, in files: where canaries stand, and what operators have ordered.

A file is written after each change, and once a minute for what changes all the time, by one thread
at a time: the newest state is the last one written. A write that failed is tried again soon. The
file is replaced as a whole: whoever is killed leaves the old one.
"""

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

logger = logging.getLogger(__name__)

PERIOD_S: Final = 1.0
MINUTE_S: Final = 60.0
# After a failed write. The time begins at PERIOD_S and doubles.
RETRY_MAX_S: Final = 60.0


class Kept(Protocol):
    """What is kept. `changed`: it should be written soon."""

    changed: bool

    def to_state(self) -> dict[str, Any]: ...

    def resume(self, known: dict[str, Any]) -> None: ...


class StateFile:
    """The file of one thing in the folder `state.dir`, by the name of that thing."""

    def __init__(self, folder: Path, name: str, kept: Kept) -> None:
        self._path = folder / f"{name}.json"
        self._kept = kept
        self._written = b"{}"
        self._failing = False
        self._stopping = asyncio.Event()
        self.wait_s = PERIOD_S  # until the next look

    def read(self) -> None:
        """Tell the state of before. A file that cannot be read counts as none."""
        try:
            written = self._path.read_bytes()
            known = orjson.loads(written)
        except FileNotFoundError:
            return
        except (OSError, orjson.JSONDecodeError) as error:
            logger.warning("%s begins anew, it cannot be read: %s", self._path, error)
            return
        self._written = written
        self._kept.resume(known if isinstance(known, dict) else {})

    async def watch(self) -> None:
        """Write now and then until `stop`, and then once more.

        It is not cancelled: its thread would go on, and might put an older state in place.
        """
        loop = asyncio.get_running_loop()
        written_s, stopping = loop.time(), False
        while not stopping:
            stopping = self._stopping.is_set()
            if stopping or self._kept.changed or loop.time() - written_s >= MINUTE_S:
                written_s = loop.time()
                await self.write()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self.wait_s)

    def stop(self) -> None:
        """Nothing changes any more."""
        self._stopping.set()

    async def write(self) -> None:
        """Write the state as it is now. After a failure it stays to be written."""
        kept = self._kept
        kept.changed = False
        try:
            await asyncio.to_thread(self._replace, orjson.dumps(kept.to_state()))
        except OSError as error:
            kept.changed = True
            if not self._failing:
                logger.warning("%s is not written: %s", self._path, error)
            self.wait_s = min(2 * self.wait_s, RETRY_MAX_S) if self._failing else PERIOD_S
            self._failing = True
            return
        if self._failing:
            logger.info("%s is written again", self._path)
        self._failing, self.wait_s = False, PERIOD_S

    def _replace(self, state: bytes) -> None:
        """Put a new file in place. Raises OSError."""
        if state == self._written:
            return
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        new = self._path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(state)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)
        self._written = state
