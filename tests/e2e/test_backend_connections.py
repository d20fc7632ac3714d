"""Connections to backends: kept for reuse, spoilt, shared; and answers that are no HTTP."""

import asyncio

import orjson
import pytest

from penstock.bench.sim.server import SimServer
from penstock.bench.sim.text import expected
from penstock.proxy.data.attempt import IDLE_RESET_S
from penstock.proxy.wire.pool import REST_S
from tests.e2e.answers import ask, text_of
from tests.e2e.process import Penstock, Script, Serve, Simulate

# Connections kept for reuse --------------------------------------------------------------------


async def with_idle_connections(penstock: Penstock, servers: list[SimServer]) -> None:
    """Each server has served a request, on a connection that is idle now."""
    async with asyncio.timeout(10):
        while not all(len(server.seen) for server in servers):
            assert (await ask(penstock)).status == 200
    await asyncio.sleep(2 * REST_S)
    for server in servers:
        server.seen.clear()


@pytest.mark.parametrize("rst", [False, True])
async def test_a_reset_on_a_reused_connection_is_retried_once(
    simulate: Simulate, serve: Serve, rst: bool
) -> None:
    (server,) = await simulate()
    penstock = await serve([server], health={"interval_s": 60, "timeout_s": 5})
    assert (await ask(penstock)).status == 200
    dialled = server.connections_total
    await asyncio.sleep(2 * REST_S)
    server.faults.set("cut_before_headers", rst=rst, times=1)
    got = await ask(penstock)
    assert (got.status, got.header(b"x-penstock-attempts")) == (200, b"1")
    assert server.connections_total == dialled + 1
    assert (await penstock.backends())[0]["failures_total"] == 0
    server.seen.clear()
    await asyncio.sleep(2 * REST_S)
    server.faults.set("cut_before_headers", rst=rst)
    got = await ask(penstock)
    assert got.status == 502
    assert len(server.seen) == 2


async def test_a_reset_after_work_is_an_attempt_of_its_own(
    simulate: Simulate, serve: Serve
) -> None:
    """Half a second after a request no connection closes for having been idle."""
    servers = await simulate(2)
    pool = {"policy": "round_robin"}
    penstock = await serve(servers, pool=pool, health={"interval_s": 60, "timeout_s": 5})
    await with_idle_connections(penstock, servers)
    for server in servers:
        server.faults.set("hang_before_headers")
    asking = asyncio.create_task(ask(penstock))
    async with asyncio.timeout(5):
        while not any(len(server.seen) for server in servers):
            await asyncio.sleep(0.01)
    await asyncio.sleep(2 * IDLE_RESET_S)
    for server in servers:
        server.faults.clear()
    next(server for server in servers if len(server.seen)).drop_connections(rst=True)
    got = await asking
    assert (got.status, got.header(b"x-penstock-attempts")) == (200, b"2")
    assert [len(server.seen) for server in servers] == [1, 1]
    assert sum(each["failures_total"] for each in await penstock.backends()) == 1


async def test_the_number_of_attempts_is_that_of_the_times_it_was_sent(
    simulate: Simulate, serve: Serve
) -> None:
    """Where each reused connection is reset at once, and each new one after it."""
    servers = await simulate(2)
    pool = {"policy": "round_robin"}
    penstock = await serve(servers, pool=pool, health={"interval_s": 60, "timeout_s": 5})
    await with_idle_connections(penstock, servers)
    for server in servers:
        server.faults.set("cut_before_headers", rst=True)
    got = await ask(penstock)
    assert [len(server.seen) for server in servers] == [2, 2]
    assert got.header(b"x-penstock-attempts") == b"4"


async def test_connections_that_closed_while_idle_cost_nothing(
    simulate: Simulate, serve: Serve
) -> None:
    (server,) = await simulate()
    penstock = await serve([server], health={"interval_s": 60, "timeout_s": 5})
    for rst in (False, True):
        assert (await ask(penstock)).status == 200
        server.drop_connections(rst=rst)
        got = await ask(penstock)
        assert (got.status, got.header(b"x-penstock-attempts")) == (200, b"1")


@pytest.mark.parametrize("fault", ["unsolicited", "second_answer"])
async def test_an_answer_that_nobody_asked_for_reaches_nobody(
    simulate: Simulate, serve: Serve, fault: str
) -> None:
    (server,) = await simulate()
    penstock = await serve([server], health={"interval_s": 60, "timeout_s": 5})
    server.faults.set(fault)
    for stream in (False, True):
        for i in range(3):
            dialled = server.connections_total
            got = await ask(penstock, prompt=f"prompt {i}", max_tokens=3, stream=stream)
            assert (got.status, got.ended) == (200, True)
            said = text_of(got.body) if stream else orjson.loads(got.body)["choices"][0]["text"]
            assert said == expected(f"prompt {i}", 3)
            assert b"second answer" not in got.body
            await asyncio.sleep(0.03)
            assert i == 0 or server.connections_total == dialled + 1


# Answers that are not what they should be ------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
NONSENSE = {
    "nothing": b"",
    "no HTTP": b"hello\r\n\r\n",
    "half a head": OK[:30],
    "bad status": OK.replace(b"200", b"2000") + b"content-length: 2\r\n\r\n{}",
    "other version": OK.replace(b"1.1", b"2.0") + b"content-length: 2\r\n\r\n{}",
    "two lengths": OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "bad length": OK + b"content-length: +2\r\n\r\n{}",
    "length and chunks": OK
    + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "other coding": OK + b"transfer-encoding: gzip\r\n\r\n{}",
    "bad chunk": OK + b"transfer-encoding: chunked\r\n\r\nxx\r\n{}\r\n0\r\n\r\n",
    "cut chunk": OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n",
    "short body": OK + b"content-length: 3\r\n\r\n{}",
    "bare line ends": OK.replace(b"\r\n", b"\n") + b"content-length: 2\n\n{}",
    "folded": OK + b"x-a: b\r\n c\r\ncontent-length: 2\r\n\r\n{}",
    "NUL": OK + b"x-a: b\x00\r\ncontent-length: 2\r\n\r\n{}",
    "switch": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
    "endless head": OK + b"x-a: b\r\n" * 20_000,
}


async def test_answers_that_are_no_http(simulate: Simulate, serve: Serve, scripted: Script) -> None:
    """One address each, in one fleet; a request that meets only those is a 502."""
    urls = [await scripted(f"m{i}", raw) for i, raw in enumerate(NONSENSE.values())]
    penstock = await serve(urls)
    wrong = {}
    for i, name in enumerate(NONSENSE):
        got = await ask(penstock, model=f"m{i}")
        told = orjson.loads(got.body) if got.ended else {}
        if got.status != 502 or told["error"]["code"] != "backend_error":
            wrong[name] = got
    assert not wrong


async def test_odd_but_valid_answers_pass(serve: Serve, scripted: Script) -> None:
    until_end = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nuntil the end"
    old = b"HTTP/1.0 200 Fine\r\ncontent-type: application/json\r\n\r\n{}"
    zipped = OK + b"content-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1f\x8b\x08\x00"
    # Compressed events never show a `data:`: held for one, they would be lost.
    zipped_events = zipped.replace(b"application/json", b"text/event-stream")
    empty = b"HTTP/1.1 204 No Content\r\n\r\n"
    hop = OK + b"connection: x-a\r\nx-a: 1\r\nkeep-alive: 5\r\nx-penstock-backend: evil\r\n"
    cases = {
        until_end: (200, b"until the end"),
        old: (200, b"{}"),
        zipped: (200, b"\x1f\x8b\x08\x00"),
        zipped_events: (200, b"\x1f\x8b\x08\x00"),
        empty: (204, b""),
        hop + b"x-request-id: other\r\ncontent-length: 2\r\n\r\n{}": (200, b"{}"),
        OK.replace(b"200", b"418") + b"content-length: 2\r\n\r\n{}": (418, b"{}"),
    }
    urls = [await scripted(f"m{i}", raw) for i, raw in enumerate(cases)]
    penstock = await serve(urls)
    for i, wanted in enumerate(cases.values()):
        got = await ask(penstock, model=f"m{i}")
        assert (got.status, got.body, got.ended) == (*wanted, True)
        assert got.header(b"x-penstock-backend") == b"b%d" % i
        assert got.head.count(b"x-penstock-backend") == 1
        assert got.head.count(b"x-request-id") == 1
        assert not got.header(b"x-a")
        assert not got.header(b"keep-alive")


async def test_servers_keep_their_own(simulate: Simulate, serve: Serve) -> None:
    """Many streams at once over two servers, each with its own text, whole and unmixed."""
    servers: list[SimServer] = await simulate(2)
    penstock = await serve(servers)
    servers[0].faults.set("multi_token", tokens=3)
    prompts = [f"{'x' * i} prompt {i}" for i in range(60)]
    answers = await asyncio.gather(
        *[ask(penstock, prompt=prompt, stream=True, max_tokens=40) for prompt in prompts]
    )
    for prompt, got in zip(prompts, answers, strict=True):
        assert got.ended
        assert text_of(got.body) == expected(prompt, 40)
