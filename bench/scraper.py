"""A server's /metrics: read, and scraped beside a load once a second, as Prometheus would do."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

from penstock.bench.client import call

PATH: Final = "/metrics"
EVERY_S: Final = 1.0


def samples(text: bytes | bytearray) -> dict[str, float]:
    """Every sample by its name and labels, as they are spelt there."""
    pairs = (line.rpartition(" ") for line in text.decode().splitlines() if line[:1] != "#")
    return {name: float(value) for name, _, value in pairs}


@contextmanager
def scraped(port: int | None) -> Iterator[None]:
    """Scrape this port meanwhile; None has no metrics."""
    if port is None:
        yield
        return
    over = Event()
    thread = Thread(target=_scrape, args=(port, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _scrape(port: int, over: Event) -> None:
    while not over.wait(EVERY_S):
        # What the peer does to its streams meanwhile is what counts.
        with contextlib.suppress(OSError):
            call(port, "GET", PATH, within_s=5.0)
