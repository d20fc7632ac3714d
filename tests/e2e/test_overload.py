"""The proxy at its own limits: it sheds early and says so, stays reachable, and recovers."""

import asyncio
import os
import resource
import signal
import time
from contextlib import suppress

import aiohttp
import orjson
import pytest

from penstock.proxy.data.clients import EXCESS_MAX
from tests.e2e.process import Fleet, Penstock, Serve, Simulate
from tests.e2e.wire import Answer, Client, Guard, request

HEALTH = request(method=b"GET", path=b"/health", body=None)
MIB = 2**20
LONG = orjson.dumps({"prompt": "long", "max_tokens": 150})  # three seconds at 50 tokens/s


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


async def test_one_connection_too_many_is_refused(guard: Guard) -> None:
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


async def test_far_too_many_connections_are_turned_away(guard: Guard) -> None:
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


async def test_without_memory_requests_are_refused_early(fleet: Fleet, serve: Serve) -> None:
    (server,), penstock = await fleet(limits={"memory_bytes": 16 * MIB})  # it holds more than that
    await penstock.until_logged("overloaded, refusing new requests reason=memory")
    assert_shed(await asked(penstock))
    # By the head alone: nobody is asked for a body.
    expecting = request(b"Expect: 100-continue", b"Content-Length: 9", body=b"")
    assert_shed(await asked(penstock, expecting))
    assert (await asked(penstock, HEALTH)).status == 200
    models = request(method=b"GET", path=b"/v1/models", body=None)
    assert (await asked(penstock, models)).status == 200
    assert (await penstock.ask_admin("/livez"))[0] == 200
    assert await penstock.ask_admin("/readyz") == (503, {"status": "memory"})  # it can never serve
    assert any(b"the memory limit is too small" in each for each in penstock.log)
    assert not any(each.method == "POST" and b"canary" in each.body for each in server.seen)
    metrics = await penstock.metrics()
    assert 'penstock_shed_total{priority="0",reason="memory"} 2.0' in metrics
    assert 'penstock_overload{reason="memory"} 1.0' in metrics


async def test_freed_memory_admits_requests_again(serve: Serve, simulate: Simulate) -> None:
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
    assert (await penstock.ask_admin("/readyz"))[0] == 200
    for client in clients:
        client.close()
    for task in refused:
        with suppress(Exception):
            await task
    async with asyncio.timeout(15):
        while (answer := await asked(penstock)).status != 200:
            assert_shed(answer)
            await asyncio.sleep(0.1)


async def test_few_descriptors_mean_fewer_clients(fleet: Fleet) -> None:
    _, penstock = await fleet(descriptors=300)
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


def take_descriptors(penstock: Penstock) -> None:
    """From now on the process may open no more."""
    taken = {int(each) for each in os.listdir(f"/proc/{penstock.process.pid}/fd")}
    give_descriptors(penstock, min(set(range(len(taken) + 1)) - taken))


def give_descriptors(penstock: Penstock, limit: int) -> None:
    _, hard = resource.prlimit(penstock.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(penstock.process.pid, resource.RLIMIT_NOFILE, (limit, hard))


async def test_without_descriptors_it_neither_spins_nor_dies(fleet: Fleet) -> None:
    """Whoever took them: what cannot be accepted is closed."""
    _, penstock = await fleet(descriptors=300)
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


async def test_empty_lines_buy_no_time(guard: Guard) -> None:
    """One is skipped before a request; a client that goes on with them asks for nothing."""
    limits = {"client_head_s": 0.3, "client_idle_s": 0.4}
    _, penstock = await guard(timeouts=limits)
    client = await Client.open(penstock, b"\r\n" + request())
    assert (await client.answer()).status == 200
    client.send(b"\r\n" + request())
    assert (await client.answer()).status == 200
    began_s = time.monotonic()
    client = await Client.open(penstock)
    rest = asyncio.create_task(client.rest(5.0))
    while not rest.done():
        for byte in (b"\r", b"\n"):
            client.send(byte)
            await asyncio.sleep(0.05)
    assert await rest is not None
    assert time.monotonic() - began_s < 3.0


STREAM = {"model": "sim-model", "prompt": "on and on", "max_tokens": 200, "stream": True}
PLAIN = STREAM | {"stream": False}
# Of several, one falls where timers come before what was received.
PAUSES = 3
PAUSED_S = 1.3  # more than any limit here


@pytest.mark.alone
async def test_a_pause_of_the_process_breaks_no_stream(fleet: Fleet) -> None:
    _, penstock = await fleet(
        2,
        profile="steady-50",
        timeouts={"idle_s": 1, "first_byte_s": 1, "client_stall_s": 1, "client_idle_s": 1},
        health={"interval_s": 0.1, "timeout_s": 0.1, "fall": 1, "deep": {"interval_s": 0.2}},
    )
    speeds = [backend["decode_step_ms"] for backend in await penstock.backends()]
    ends: list[str] = []
    begun = asyncio.Semaphore(0)

    async def stream(session: aiohttp.ClientSession) -> None:
        async with session.post(f"{penstock.url}/v1/completions", json=STREAM) as answer:
            text = b""
            async for line in answer.content:
                if not text:
                    begun.release()
                text += line
        ends.append(text[-14:].decode())

    async def plain(session: aiohttp.ClientSession) -> None:
        begun.release()
        async with session.post(f"{penstock.url}/v1/completions", json=PLAIN) as answer:
            await answer.read()
            ends.append(str(answer.status))

    async with aiohttp.ClientSession() as session:
        tasks = [asyncio.create_task(stream(session)) for _ in range(12)]
        tasks += [asyncio.create_task(plain(session)) for _ in range(4)]
        for _ in tasks:
            await begun.acquire()
        for _ in range(PAUSES):
            penstock.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(PAUSED_S)
            penstock.process.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.4)
        await asyncio.gather(*tasks)
    after = await penstock.backends()
    assert [backend["failures_total"] for backend in after] == [0, 0]
    # All have been through a pause, so how long they took says nothing.
    assert [backend["decode_step_ms"] for backend in after] == speeds
    log = b"".join(penstock.log)
    assert sorted(ends) == ["200"] * 4 + ["data: [DONE]\n\n"] * 12, ends
    assert b"the process was not running" in log
    assert b"backend ejected" not in log, log.decode()


@pytest.mark.alone
async def test_a_pause_fails_no_dial(fleet: Fleet) -> None:
    """The timer of 0.3 s comes before what was received, unless it waits for that."""
    _, penstock = await fleet(1, timeouts={"connect_s": 0.3})
    statuses: list[int] = []

    async def ask(session: aiohttp.ClientSession) -> None:
        async with session.post(f"{penstock.url}/v1/completions", json=PLAIN) as answer:
            statuses.append(answer.status)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for _ in range(PAUSES):
            tasks = [asyncio.create_task(ask(session)) for _ in range(60)]
            await asyncio.sleep(0.02)
            penstock.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.8)
            penstock.process.send_signal(signal.SIGCONT)
            await asyncio.gather(*tasks)
    assert statuses == [200] * len(statuses)
    assert len(statuses) == 60 * PAUSES
