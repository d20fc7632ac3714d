"""Many connect at once: they are accepted in a few turns of the loop, and none is left behind."""

import asyncio
import gc
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from penstock.proxy.app import App
from penstock.proxy.data.clients import EXCESS_MAX
from penstock.proxy.process.descriptors import OWN
from penstock.proxy.process.loop import run_loop
from penstock.proxy.reload.source import Source

RUNNERS = [pytest.param(run_loop, id="uvloop"), pytest.param(asyncio.run, id="asyncio")]
Runner = Callable[[Awaitable[None]], None]


@asynccontextmanager
async def proxy(**given: object) -> AsyncIterator[App]:
    """In this process, where turns of its loop can be counted."""
    thresholds = gc.get_threshold()  # of this process: the app sets its own
    keys = {"backends": ["http://127.0.0.1:9"], "listen.port": 0, "admin.port": 0}
    source = Source(None, {}, {**keys, "log.access": False, **given})
    app = App(source, source.load())
    try:
        await app.start()
        yield app
    finally:
        await app.close()
        gc.unfreeze()
        gc.set_threshold(*thresholds)


def connect(app: App, count: int) -> list[socket.socket]:
    """The kernel completes these connections. They wait to be accepted."""
    return [socket.create_connection(("127.0.0.1", app.port), timeout=2) for _ in range(count)]


def close(clients: list[socket.socket]) -> None:
    for client in clients:
        client.close()


def busy() -> None:
    """Something else takes its time in a turn."""
    time.sleep(0.006)


@pytest.mark.parametrize("run", RUNNERS)
def test_all_who_wait_are_accepted_in_a_few_turns(run: Runner) -> None:
    taken: list[int] = []

    async def count() -> None:
        async with proxy() as app:
            clients = connect(app, 100)
            for turns in range(200):
                if len(app.plane.clients) == len(clients):
                    taken.append(turns)
                    break
                busy()
                await asyncio.sleep(0)
            close(clients)
            await asyncio.sleep(0.1)

    run(count())
    assert taken
    assert taken[0] < 20


def test_no_more_are_accepted_at_once_than_there_are_descriptors_for() -> None:
    """Of those who get no seat. Each is told and closed, which takes turns of the loop."""

    async def watch() -> None:
        async with proxy(**{"limits.connections": 10}) as app:
            clients = connect(app, 300)
            before = most = len(os.listdir("/proc/self/fd"))
            for _ in range(400):
                await asyncio.sleep(0)
                most = max(most, len(os.listdir("/proc/self/fd")))
            assert most - before < 10 + EXCESS_MAX + OWN
            assert len(app.plane.clients) == 10 + EXCESS_MAX
            close(clients)

    run_loop(watch())


@pytest.mark.parametrize("turns", range(6))
def test_a_port_that_closes_leaves_nobody_behind(turns: int) -> None:
    """Not even whom it has accepted and does not know yet."""

    async def leave() -> None:
        async with proxy() as app:
            clients = connect(app, 30)
            for _ in range(turns):
                await asyncio.sleep(0)
        for client in clients:
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
        close(clients)

    run_loop(leave())
