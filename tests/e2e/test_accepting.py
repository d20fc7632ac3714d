"""Connections as they are accepted, and a loop that lags: in this process, where turns count."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import pytest

from penstock.proxy.admin.visitors import ACCEPTED_MAX, VISITORS_MAX
from penstock.proxy.data.clients import EXCESS_MAX
from penstock.proxy.process.descriptors import OWN
from penstock.proxy.process.loop import run_loop
from tests.e2e.in_process import proxy
from tests.e2e.process import Penstock, Simulate
from tests.e2e.test_overload import HEALTH, asked, assert_shed

RUNNERS = [pytest.param(run_loop, id="uvloop"), pytest.param(asyncio.run, id="asyncio")]


Runner = Callable[[Awaitable[None]], None]


def connect(port: int, count: int) -> list[socket.socket]:
    """The kernel completes these connections. They wait to be accepted."""
    return [socket.create_connection(("127.0.0.1", port), timeout=SOON_S) for _ in range(count)]


def close(clients: list[socket.socket]) -> None:
    for client in clients:
        client.close()


def busy() -> None:
    """Something else takes its time in a turn."""
    time.sleep(0.006)


@pytest.mark.parametrize("run", RUNNERS)
def test_waiting_connections_are_accepted_in_few_turns(run: Runner) -> None:
    taken: list[int] = []

    async def count() -> None:
        async with proxy() as app:
            clients = connect(app.port, 100)
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


def test_accepting_stops_before_descriptors_run_out() -> None:
    """Of those who get no seat. Each is told and closed, which takes turns of the loop."""

    async def watch() -> None:
        async with proxy(**{"limits.connections": 10}) as app:
            clients = connect(app.port, 300)
            before = most = len(os.listdir("/proc/self/fd"))
            for _ in range(400):
                await asyncio.sleep(0)
                most = max(most, len(os.listdir("/proc/self/fd")))
            assert most - before < 10 + EXCESS_MAX + OWN
            assert len(app.plane.clients) == 10 + EXCESS_MAX
            close(clients)

    run_loop(watch())


@pytest.mark.parametrize("turns", range(6))
def test_a_closing_port_leaves_nobody_behind(turns: int) -> None:
    """Not even whom it has accepted and does not know yet."""

    async def leave() -> None:
        async with proxy() as app:
            clients = connect(app.port, 30)
            for _ in range(turns):
                await asyncio.sleep(0)
        for client in clients:
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
        close(clients)

    run_loop(leave())


LIVEZ = b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


# Descriptors that they take, with some for what is just closing.
MOST = VISITORS_MAX + ACCEPTED_MAX + 16


# Below the second after which a client repeats a packet that the kernel has dropped.
SOON_S = 0.9


@pytest.mark.parametrize("run", RUNNERS)
def test_a_probe_behind_many_is_answered_in_few_turns(run: Runner) -> None:
    """In the kernel's queue there is room for all."""
    taken: list[int] = []

    async def count() -> None:
        async with proxy() as app:
            before = len(os.listdir("/proc/self/fd"))
            strangers = connect(app.admin_port, 300)
            (probe,) = connect(app.admin_port, 1)
            probe.sendall(LIVEZ)
            probe.setblocking(False)
            for turns in range(400):
                assert len(os.listdir("/proc/self/fd")) - before - 301 < MOST
                busy()
                await asyncio.sleep(0)
                try:
                    assert probe.recv(15) == b"HTTP/1.1 200 OK"
                except BlockingIOError:
                    continue
                taken.append(turns)
                break
            close([*strangers, probe])

    run(count())
    assert taken
    assert taken[0] < 60


def spin(work_s: float) -> None:
    """Keep the loop's thread at work."""
    ends_s = time.thread_time() + work_s
    while time.thread_time() < ends_s:
        pass


@pytest.mark.alone
async def test_a_lagging_loop_sheds_and_recovers(simulate: Simulate) -> None:
    (server,) = await simulate()
    async with proxy(backends=[server.url]) as app:
        penstock = Penstock(cast(Any, None), app.port, app.admin_port)
        await penstock.until_ready(1)
        assert (await asked(penstock)).status == 200
        for _ in range(5):
            spin(0.6)
            await asyncio.sleep(0.001)
        assert_shed(await asked(penstock))
        assert (await asked(penstock, HEALTH)).status == 200
        assert app.plane.metrics.shed["lag", "0"] == 1
        async with asyncio.timeout(20):
            while (await asked(penstock)).status != 200:
                await asyncio.sleep(0.1)
