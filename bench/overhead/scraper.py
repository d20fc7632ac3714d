"""A scrape of /metrics a second beside a load, as Prometheus would do, or oftener than it would."""

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

EVERY_S: Final = 1.0


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
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
        try:
            connection.request("GET", "/metrics")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            pass  # what the peer does to its streams meanwhile is what counts
        finally:
            connection.close()
