"""The app in this process, where turns of its loop can be counted and names be made up."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.proxy.app import App
from penstock.proxy.reload.source import Source
from penstock.proxy.wire.host import Names


@asynccontextmanager
async def proxy(names: Names | None = None, /, **given: object) -> AsyncIterator[App]:
    """`given`: flags of `penstock serve`."""
    thresholds = gc.get_threshold()  # of this process: the app sets its own
    keys = {"backends": ["http://127.0.0.1:9"], "listen.port": 0, "admin.port": 0}
    source = Source(None, {}, {**keys, "log.access": False, **given})
    app = App(source, source.load(), names=names)
    try:
        await app.start()
        yield app
    finally:
        await app.close()
        gc.unfreeze()
        gc.set_threshold(*thresholds)
