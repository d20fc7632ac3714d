"""The proxy at its own limits: it sheds early and says so, stays reachable, and recovers."""

import asyncio
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import aiohttp
import orjson
import pytest

from penstock.proxy.app import App
from penstock.proxy.data.clients import EXCESS_MAX
from penstock.proxy.reload.source import Source
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.wire import Answer, Client, Guard, request

HEALTH = request(method=b"GET", path=b"/health", body=None)
MIB = 2**20
LONG = orjson.dumps({"prompt": "long", "max_tokens": 250})  # some seconds at 50 tokens/s


@pytest.fixture(autouse=True)
async def close_clients() -> AsyncIterator[None]:
    yield
    for client in [*Client.opened]:
        client.close()
    await asyncio.sleep(0.01)  # until their sockets are


def assert_shed(answer: Answer) -> None:
    """429 in the API's own shape, with hints that SDKs obey."""
    assert (answer.status, answer.code) == (429, "overloaded")
    after_ms = int(answer.headers["retry-after-ms"])
    assert 500 <= after_ms <= 59_000
    assert int(answer.headers["retry-after"]) == -(-after_ms // 1000)
    assert answer.headers["connection"] == "close"


async def asked(penstock: Penstock, raw: bytes | None = None) -> Answer:
    """One request on a connection of its own."""
    client = await Client.open(penstock, request() if raw is None else raw)
    try:
        return await client.answer()
    finally:
        client.close()


def cpu_s(penstock: Penstock) -> float:
    return time.clock_gettime((~penstock.process.pid << 3) | 2)


# Connections ------------------------------------------------------------------------------------


async def test_one_too_many_is_told_in_its_own_shape_and_hears_of_the_fleet(guard: Guard) -> None:
    server, penstock = await guard(limits={"connections": 2})
    first, second = [await Client.open(penstock, request()) for _ in range(2)]
    for client in (first, second):
        assert (await client.answer()).status == 200
    served = len(server.seen)
    answer = await asked(penstock)
    assert_shed(answer)
    assert answer.headers["x-request-id"]
    answer = await asked(penstock, request(path=b"/v1/messages"))
    assert answer.status == 429
    assert answer.json["type"] == "error"
    # Before its body is read: nobody is asked for one.
    answer = await asked(penstock, request(b"Expect: 100-continue", b"Content-Length: 9", body=b""))
    assert_shed(answer)
    answer = await asked(penstock, HEALTH)
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    assert len(await penstock.backends()) == 1
    assert len(server.seen) == served
    # Those inside are served as before.
    first.send(request())
    assert (await first.answer()).status == 200
    # One who came too early is served when another has left before he asks.
    waiting = await Client.open(penstock)
    second.close()
    await asyncio.sleep(0.5)
    waiting.send(request())
    assert (await waiting.answer()).status == 200


async def test_one_too_many_does_not_wait_long(guard: Guard) -> None:
    """Silent, or slow with its head: told within the second that it is given."""
    _, penstock = await guard("steady-50", limits={"connections": 1})
    await Client.open(penstock, request(body=LONG))  # a silent one would give way
    for beginning in (b"", b"P", request()[:40]):
        began_s = time.monotonic()
        client = await Client.open(penstock, beginning)
        answer = await client.answer(10)
        assert answer.status in (408, 429)
        assert time.monotonic() - began_s < 8.0  # a head has ten seconds, silence 75
        assert await client.rest(3.0) == b""


async def test_far_too_many_are_turned_away(guard: Guard) -> None:
    """More than are read at all: each gets a word and an end, and none stays."""
    _, penstock = await guard("steady-50", limits={"connections": 4})
    inside = [await Client.open(penstock, request(body=LONG)) for _ in range(4)]
    clients = [await Client.open(penstock) for _ in range(EXCESS_MAX + 100)]
    answers = await asyncio.gather(*(client.answer() for client in clients))
    for answer in answers:
        assert_shed(answer)
    assert len({answer.headers["retry-after-ms"] for answer in answers}) > 50  # spread
    # Those who are turned away hold nothing, though they have not closed their end.
    assert len(os.listdir(f"/proc/{penstock.process.pid}/fd")) < EXCESS_MAX + 60
    for client in clients:
        assert await client.rest(3.0) == b""
    for client in inside:
        assert (await client.answer(20)).status == 200
    shed = f'penstock_shed_total{{priority="0",reason="connections"}} {len(clients)}.0'
    assert shed in await penstock.metrics()


# Memory and lag ---------------------------------------------------------------------------------


async def test_short_of_memory_new_requests_are_shed_by_their_head(
    serve: Serve, simulate: Simulate
) -> None:
    (server,) = await simulate()
    penstock = await serve([server], limits={"memory_bytes": 16 * MIB})  # it holds more than that
    await asyncio.sleep(0.4)
    client = await Client.open(penstock, request())
    assert_shed(await client.answer())
    assert await client.rest() == b""
    # By the head alone: nobody is asked for a body.
    expecting = request(b"Expect: 100-continue", b"Content-Length: 9", body=b"")
    assert_shed(await asked(penstock, expecting))
    assert (await asked(penstock, HEALTH)).status == 200
    models = request(method=b"GET", path=b"/v1/models", body=None)
    assert (await asked(penstock, models)).status == 200
    async with aiohttp.ClientSession() as session:
        async with session.get(penstock.admin_url + "/livez") as answer:
            assert answer.status == 200
        async with session.get(penstock.admin_url + "/readyz") as answer:  # it can never serve
            assert (answer.status, await answer.json()) == (503, {"status": "memory"})
    assert any(b"the memory limit is too small" in each for each in penstock.log)
    assert not any(each.method == "POST" and b"canary" in each.body for each in server.seen)
    metrics = await penstock.metrics()
    assert 'penstock_shed_total{priority="0",reason="memory"} 2.0' in metrics
    assert 'penstock_overload{reason="memory"} 1.0' in metrics
    assert any(b"overloaded, refusing new requests reason=memory" in each for each in penstock.log)


async def test_memory_that_is_given_back_opens_the_door_again(
    serve: Serve, simulate: Simulate
) -> None:
    """Bodies on their way fill it; they are refused too, and once they are gone it is as before."""
    servers = await simulate()
    idle_bytes = (await serve(servers)).resident_bytes
    limit_bytes = (idle_bytes + 170 * MIB) * 10 // 9
    limits = {"memory_bytes": limit_bytes, "body_bytes": 32 * MIB}
    penstock = await serve(servers, limits=limits)
    piece = b"x" * (64 * 1024)
    head = request(b"Content-Length: %d" % (32 * MIB), body=b'{"prompt":"')
    clients = [await Client.open(penstock, head) for _ in range(4)]
    refused = [asyncio.create_task(client.answer(20)) for client in clients]
    for _ in range(31 * 16):
        for client in clients:
            client.send(piece)
        await asyncio.sleep(0.005)
        if any(each.done() for each in refused):
            break
    done, _ = await asyncio.wait(refused, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert_shed(next(iter(done)).result())
    assert penstock.resident_bytes < limit_bytes
    async with (
        aiohttp.ClientSession() as session,
        session.get(penstock.admin_url + "/readyz") as readiness,
    ):
        assert readiness.status == 200
    for client in clients:
        client.close()
    for task in refused:
        with suppress(Exception):
            await task
    async with asyncio.timeout(15):
        while (answer := await asked(penstock)).status != 200:
            assert_shed(answer)
            await asyncio.sleep(0.1)


async def test_a_pause_is_no_overload(serve: Serve, simulate: Simulate) -> None:
    """Nor is a machine that others keep busy: what is late waits, but is not refused."""
    penstock = await serve(await simulate())
    for _ in range(3):
        penstock.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.8)
        penstock.process.send_signal(signal.SIGCONT)
        assert (await asked(penstock)).status == 200


def spin(work_s: float) -> None:
    """Keep the loop's thread at work."""
    ends_s = time.thread_time() + work_s
    while time.thread_time() < ends_s:
        pass


@pytest.mark.alone
async def test_a_loop_that_lags_sheds_and_soon_serves_again(
    simulate: Simulate,
) -> None:
    """In this process, where its loop can be kept busy."""
    thresholds = gc.get_threshold()  # of this process: the app sets its own
    (server,) = await simulate()
    given = {"backends": [server.url], "listen.port": 0, "admin.port": 0, "log.access": False}
    source = Source(None, {}, given)
    app = App(source, source.load())
    await app.start()
    try:
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
    finally:
        await app.close()
        gc.unfreeze()
        gc.set_threshold(*thresholds)


async def test_a_retry_that_cannot_help_is_not_asked_for(guard: Guard) -> None:
    _, penstock = await guard(limits={"body_bytes": 2048})
    for raw in (request(b"Content-Length: 2049", body=b""), request(b"x: " + b"x" * 70_000)):
        answer = await asked(penstock, raw)
        assert answer.status in (413, 431)
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers


# Descriptors ------------------------------------------------------------------------------------


async def test_fewer_descriptors_than_needed_mean_fewer_clients(
    serve: Serve, simulate: Simulate
) -> None:
    penstock = await serve(await simulate(), descriptors=300)
    warnings = [each for each in penstock.log if b"descriptors are too few" in each]
    (warning,) = warnings
    assert b"limits.connections=10000 allows more" in warning
    assert b"ulimit -n" in warning
    fit = int(warning.partition(b"too few: ")[2].split()[0])
    assert 20 < fit < 150
    clients = [await Client.open(penstock, request()) for _ in range(fit + EXCESS_MAX + 100)]
    answers = [client.answer(20) for client in clients]
    got = await asyncio.gather(*answers, return_exceptions=True)
    statuses = [answer.status for answer in got if isinstance(answer, Answer)]
    # Who is turned away unread may see a reset instead of its answer, but never nothing.
    assert all(isinstance(each, Answer | ConnectionError | EOFError) for each in got)
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= fit
    for client in clients:
        client.close()
    await asyncio.sleep(0.1)
    assert (await asked(penstock)).status == 200
    assert not any(b"Too many open files" in each for each in penstock.log)


async def test_too_few_descriptors_for_anybody_is_said_at_the_start(tmp_path: Path) -> None:
    script = 'ulimit -n 64; exec "$@"'
    command = [
        sys.executable,
        "-m",
        "proxy",
        "serve",
        "--port",
        "0",
        "--backend",
        "http://127.0.0.1:9",
    ]
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", script, "sh", *command, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 1
    assert b"64 file descriptors are too few to serve anybody; raise the limit to" in said
    assert b"Traceback" not in said


def take_descriptors(penstock: Penstock) -> None:
    """From now on the process may open no more."""
    taken = {int(each) for each in os.listdir(f"/proc/{penstock.process.pid}/fd")}
    give_descriptors(penstock, min(set(range(len(taken) + 1)) - taken))


def give_descriptors(penstock: Penstock, limit: int) -> None:
    _, hard = resource.prlimit(penstock.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(penstock.process.pid, resource.RLIMIT_NOFILE, (limit, hard))


async def test_connections_to_the_admin_port_take_no_descriptors_from_probes_and_clients(
    serve: Serve, simulate: Simulate
) -> None:
    health = {"interval_s": 0.5, "timeout_s": 0.5}
    penstock = await serve(await simulate(2), descriptors=300, health=health)
    hogs = [await asyncio.open_connection("127.0.0.1", penstock.admin_port) for _ in range(400)]
    for _, writer in hogs[::2]:
        writer.write(b"GET /liv")
    for _ in range(10):
        assert (await asked(penstock)).status == 200
        await asyncio.sleep(0.1)
    assert [each["state"] for each in await penstock.backends()] == ["ready", "ready"]
    for _, writer in hogs:
        writer.transport.abort()


def lacking(penstock: Penstock) -> list[bytes]:
    return [line for line in penstock.log if b"backends cannot be asked" in line]


async def test_without_descriptors_probes_accuse_nobody(serve: Serve, simulate: Simulate) -> None:
    health = {"interval_s": 0.1, "timeout_s": 0.1}
    penstock = await serve(await simulate(2), descriptors=300, health=health)
    async with asyncio.timeout(20):  # until a probe has needed a new connection
        while not lacking(penstock):
            take_descriptors(penstock)  # again: some that were counted were closed since
            await asyncio.sleep(0.05)
    await asyncio.sleep(1.5)
    give_descriptors(penstock, 300)
    assert [each["state"] for each in await penstock.backends()] == ["ready", "ready"]
    assert len(lacking(penstock)) == 1
    assert b"EMFILE" in lacking(penstock)[0]
    assert not any(b"backend ejected" in line or b"suspect" in line for line in penstock.log)


async def test_without_descriptors_it_neither_spins_nor_dies(
    serve: Serve, simulate: Simulate
) -> None:
    """Whoever took them: what cannot be accepted is closed."""
    penstock = await serve(await simulate(), descriptors=300)
    take_descriptors(penstock)
    began_s = cpu_s(penstock)
    late = [await Client.open(penstock, request()) for _ in range(20)]
    await asyncio.sleep(1.0)
    assert cpu_s(penstock) - began_s < 0.5
    for client in late:
        with suppress(EOFError, ConnectionError):
            assert (await client.answer(2.0)).status in (200, 429)
    give_descriptors(penstock, 300)
    async with asyncio.timeout(10):
        while True:
            with suppress(EOFError, ConnectionError):
                if (await asked(penstock)).status == 200:
                    break
            await asyncio.sleep(0.1)
    assert len(await penstock.backends()) == 1


async def test_a_dial_without_descriptors_is_no_fault_of_the_backends(
    serve: Serve, simulate: Simulate
) -> None:
    (server,) = await simulate(keep_alive_s=0.2)
    penstock = await serve([server], descriptors=300, health={"interval_s": 60, "timeout_s": 5})
    client = await Client.open(penstock)
    await asyncio.sleep(0.5)  # the connections of the first probes are gone
    take_descriptors(penstock)
    client.send(request())
    answer = await client.answer()
    give_descriptors(penstock, 300)
    assert_shed(answer)
    (backend,) = await penstock.backends()
    assert (backend["state"], backend["failures_total"]) == ("ready", 0)
    assert 'shed_total{priority="0",reason="descriptors"} 1.0' in await penstock.metrics()
