"""Has request bodies decoded in one thread, by pieces: after each, another client has its turn."""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from penstock.proxy.wire.content_coding import Decoder


class Decoding(Protocol):
    """A body that is being decoded."""

    decoder: Decoder

    @property
    def holder(self) -> str: ...

    def told(self, found: int | Exception) -> None:
        """A piece of so many bytes was decoded, or why none was. Called on the loop."""


class Decoders:
    """The thread, and whose bodies wait for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads: ThreadPoolExecutor | None = None  # while nobody sends coded bodies
        self._busy = False
        self._waiting: dict[str, deque[Decoding]] = {}  # by holder, in the order of their turns

    def add(self, decoding: Decoding) -> None:
        """Have its next piece decoded when its turn comes."""
        self._waiting.setdefault(decoding.holder, deque()).append(decoding)
        if not self._busy:
            self._go_on()

    def close(self) -> None:
        """Take no more bodies."""
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def _go_on(self) -> None:
        self._busy = bool(self._waiting)
        if not self._waiting:
            return
        holder = next(iter(self._waiting))
        bodies = self._waiting.pop(holder)
        decoding = bodies.popleft()
        if bodies:
            self._waiting[holder] = bodies
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="decoding")
        self._threads.submit(self._run, decoding)

    def _run(self, decoding: Decoding) -> None:
        """Decode one piece. Runs in the thread."""
        found: int | Exception
        try:
            found = decoding.decoder.more()
        except Exception as error:  # noqa: BLE001 - told on the loop
            found = error
        self._loop.call_soon_threadsafe(self._told, decoding, found)

    def _told(self, decoding: Decoding, found: int | Exception) -> None:
        decoding.told(found)
        self._go_on()
