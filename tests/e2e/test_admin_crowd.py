"""Whoever crowds the admin port from one address: the probes of Kubernetes are answered soon."""

import asyncio
import os
import socket
import time
from contextlib import suppress

import pytest

from penstock.proxy.admin.visitors import ACCEPTED_MAX, VISITORS_MAX
from tests.e2e.process import Serve, Simulate
from tests.e2e.test_accepting import RUNNERS, Runner, busy, close, proxy

LIVEZ = b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
SIGN_IN = (
    b"POST /ui/session HTTP/1.1\r\nhost: 127.0.0.1:%d\r\norigin: http://127.0.0.1:%d\r\n"
    b"x-penstock-page: 1\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
)
STRANGERS = 60
STRANGERS_ADDRESS = "127.0.0.2"
# Descriptors that they take, with some for what is just closing.
MOST = VISITORS_MAX + ACCEPTED_MAX + 16
# Below the second after which a client repeats a packet that the kernel has dropped.
SOON_S = 0.9


def connect(port: int, count: int) -> list[socket.socket]:
    return [socket.create_connection(("127.0.0.1", port), timeout=SOON_S) for _ in range(count)]


@pytest.mark.parametrize("run", RUNNERS)
def test_a_probe_behind_many_is_answered_in_a_few_turns(run: Runner) -> None:
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


async def test_probes_are_answered_while_strangers_sign_in_again_and_again(
    serve: Serve, simulate: Simulate
) -> None:
    token = {"host": "127.0.0.1", "port": 0, "token": "a-token-of-the-admin-port"}
    penstock = await serve(await simulate(), admin=token)
    port = penstock.admin_port

    async def signs_in() -> None:
        """It sends no body, and is told to give way."""
        while True:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(STRANGERS_ADDRESS, 0)
            )
            try:
                writer.write(SIGN_IN % (port, port))
                with suppress(ConnectionError):
                    await reader.read(100)
            finally:
                writer.transport.abort()

    async def probe() -> float:
        began_s = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(LIVEZ)
        told = await reader.read()
        writer.close()
        assert told.startswith(b"HTTP/1.1 200 OK"), told
        return time.monotonic() - began_s

    strangers = [asyncio.create_task(signs_in()) for _ in range(STRANGERS)]
    await asyncio.sleep(0.05)
    probes = []
    for _ in range(60):
        probes.append(asyncio.create_task(probe()))
        await asyncio.sleep(0.04)
    times_s = await asyncio.gather(*probes)
    for stranger in strangers:
        stranger.cancel()
    await asyncio.wait(strangers)
    await asyncio.sleep(0)  # their connections are closed in the next turn
    assert max(times_s) < SOON_S
