"""Backends that refuse, hang or die before the first token: another one serves, unseen."""

import asyncio
import re
import statistics
import time
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import orjson
import pytest

from penstock.bench.sim.server import SimServer
from penstock.bench.sim.text import expected
from tests.e2e.answers import BODIES, ENDS, Got, ask, text_of
from tests.e2e.forked import SimProcess
from tests.e2e.process import Fleet, Penstock, Serve, Simulate, until
from tests.e2e.request import CHAT
from tests.e2e.request import Got as Answered
from tests.e2e.request import ask as ask_once

CHOICES = ("/v1/chat/completions", "/v1/completions")
every_dialect = pytest.mark.parametrize("path", BODIES)


async def states(penstock: Penstock) -> list[str]:
    return [backend["state"] for backend in await penstock.backends()]


HIDDEN_FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "cut_before_headers"},
    {"kind": "cut_before_headers", "rst": True},
    {"kind": "cut_after_headers"},
    {"kind": "cut_after_headers", "rst": True},
    {"kind": "error_event"},
    {"kind": "done_only"},
    {"kind": "busy"},
)
# By these a backend says of itself that it is ending, and is out at once.
ENDING_FAULTS: tuple[dict[str, Any], ...] = (
    {"kind": "error_event", "status": 500},
    {"kind": "draining"},
)


@every_dialect
async def test_failures_before_the_first_token_are_hidden(fleet: Fleet, path: str) -> None:
    servers, penstock = await fleet(2, pool={"policy": "round_robin"})
    plain: tuple[dict[str, Any], ...] = (
        *HIDDEN_FAULTS[:4],
        {"kind": "cut_mid_stream"},
        {"kind": "busy"},
        {"kind": "abort_empty"},  # one request given up is no end of its backend
    )
    for stream, faults in ((True, HIDDEN_FAULTS), (False, plain)):
        for fault in faults:
            async with asyncio.timeout(20):  # it may be left alone, or suspect
                while (await ask(penstock, path)).header(b"x-penstock-backend") != b"b0":
                    await asyncio.sleep(0.05)
            attempts: list[bytes] = []
            servers[0].drop_connections()  # a failure on a reused one is no attempt
            servers[0].faults.set(**fault, times=1, path=path)  # not for a deep probe
            for _ in range(200):
                got = await ask(penstock, path, stream=stream)
                assert (got.status, got.ended) == (200, True), fault
                assert b"error" not in got.body.replace(b'"error":null', b""), fault
                if stream:
                    assert got.body.endswith(ENDS[path]), fault
                attempts.append(got.header(b"x-penstock-attempts"))
                if attempts[-1] == b"2":
                    assert got.header(b"x-penstock-backend") == b"b1"
                if b"2" in attempts[:-2]:
                    break
            assert attempts.count(b"2") == 1, fault
    await penstock.until_ready(2)  # a probe may have lost its connection, too
    assert b"ejected" not in b"".join(penstock.log)


@every_dialect
async def test_a_backend_that_is_ending_is_ejected_at_once(fleet: Fleet, path: str) -> None:
    servers, penstock = await fleet(5, pool={"policy": "round_robin"})
    for number, (stream, fault) in enumerate(product((True, False), ENDING_FAULTS)):
        if stream and fault["kind"] == "error_event" and path not in CHOICES:
            continue  # as an event it is not told there: the stream just ends
        servers[number].faults.set(**fault)
        attempts = []
        for _ in range(2 * len(servers)):
            got = await ask(penstock, path, stream=stream)
            assert (got.status, got.ended) == (200, True), fault
            assert b"error" not in got.body.replace(b'"error":null', b""), fault
            attempts.append(got.header(b"x-penstock-attempts"))
        assert attempts.count(b"2") == 1, fault
        assert (await states(penstock))[number] == "ejected", fault


async def test_a_lone_backends_failure_is_a_502(fleet: Fleet) -> None:
    (server,), penstock = await fleet()
    for stream in (True, False):
        for fault in ("cut_before_headers", "cut_after_headers"):
            server.faults.clear()
            server.faults.set(fault)
            got = await ask(penstock, stream=stream)
            error = error_of(got)
            assert (got.status, error["code"], got.ended) == (502, "backend_error", True)
            assert got.header(b"retry-after") == b"1"
            assert str(server.port) not in error["message"]
    server.faults.clear()
    server.faults.set("cut_before_headers")
    got = await ask(penstock, "/v1/messages")
    assert got.status == 502
    assert orjson.loads(got.body)["type"] == "error"


async def test_a_server_dies_under_load_and_comes_back(fleet: Fleet) -> None:
    """Nobody sees an error before the first token; who had one sees a broken stream."""
    servers, penstock = await fleet(2, profile="default")
    port = servers[0].port
    over = asyncio.Event()
    answers: list[tuple[str, Got]] = []

    async def keep_asking(worker: int) -> None:
        count = 0
        while not over.is_set():
            prompt, count = f"{worker} {count}", count + 1
            got = await ask(penstock, prompt=prompt, stream=True, max_tokens=8)
            answers.append((prompt, got))

    workers = [asyncio.create_task(keep_asking(worker)) for worker in range(16)]
    await penstock.until(lambda listing: all(each["streams"] >= 4 for each in listing), 5)
    await servers[0].stop()
    # Refused, not only suspected for its broken streams: that would keep it out for ten seconds.
    await penstock.until(lambda listing: not listing[0]["can_serve"], 2)
    await penstock.until(lambda listing: listing[0]["reason"] == "unreachable", 2)
    assert await states(penstock) == ["ejected", "ready"]
    await penstock.until(lambda listing: listing[1]["streams"] >= 12, 5)
    await servers[0].start(port=port)
    await penstock.until(lambda listing: listing[0]["state"] == "ready", 5)
    await penstock.until(lambda listing: listing[0]["streams"] >= 2, 5)
    over.set()
    await asyncio.gather(*workers)
    broken = 0
    for prompt, got in answers:
        whole = expected(prompt, 8)
        said = text_of(got.body)
        assert got.status == 200
        if got.ended:
            assert said == whole
            assert got.body.endswith(b"data: [DONE]\n\n")
        else:
            broken += 1
            assert said
            assert whole.startswith(said)
            assert got.last_event["error"]["code"] == "stream_broken"
    assert 1 <= broken <= 16


async def test_503_at_once_while_all_backends_are_down(fleet: Fleet) -> None:
    servers, penstock = await fleet(2)
    for server in servers:
        server.faults.set("refuse")
    await penstock.until(lambda listing: all(b["state"] == "ejected" for b in listing), 5)
    took_s = []
    for path in list(BODIES) * 5:
        began_s = time.perf_counter()
        got = await ask(penstock, path, stream=True)
        took_s.append(time.perf_counter() - began_s)
        assert got.status == 503
        assert int(got.header(b"retry-after")) >= 1
        assert 0 < int(got.header(b"retry-after-ms")) <= 1000
        error = orjson.loads(got.body)["error"]
        if path == "/v1/messages":
            assert error["type"] == "overloaded_error"
        else:
            assert error["code"] == "no_backend"
    assert statistics.median(took_s) < 0.05
    for server in servers:
        server.faults.clear()
    await penstock.until_ready(2)
    assert (await ask(penstock)).status == 200


FAR_PROBES = {"interval_s": 60, "timeout_s": 5}


def requests_at(servers: list[SimServer]) -> int:
    return sum(len(server.seen) for server in servers)


def error_of(got: Got) -> Any:
    return orjson.loads(got.body)["error"]


async def attempts(penstock: Penstock) -> dict[str, int]:
    found = re.findall(r'penstock_attempts_total{reason="(\w+)"} (\d+)', await penstock.metrics())
    return {reason: int(count) for reason, count in found}


DEATHS: tuple[dict[str, Any], ...] = (
    {"kind": "cut_before_headers"},
    {"kind": "cut_after_headers", "rst": True},
    {"kind": "error_event", "status": 500},
)


async def test_a_request_that_killed_two_engines_is_refused(fleet: Fleet) -> None:
    servers, penstock = await fleet(9, health=FAR_PROBES)
    for number, fault in enumerate(DEATHS):
        for server in servers:
            server.faults.set(**fault)
            server.seen.clear()
        stream = bool(number % 2)
        got = await ask(penstock, prompt=f"kill {number}", stream=stream)
        assert (got.status, error_of(got)["code"]) == (500, "poison_request"), fault
        assert got.header(b"x-should-retry") == b"false"
        assert not got.header(b"retry-after")
        assert requests_at(servers) == 2, fault
        for server in servers:
            server.faults.clear()
        again = await ask(penstock, prompt=f"kill {number}", stream=stream)
        assert (again.status, error_of(again)["code"]) == (500, "poison_request")
        assert requests_at(servers) == 2
        assert (await ask(penstock, prompt=f"other {number}")).status == 200
    assert (await attempts(penstock))["poison"] == len(DEATHS)
    for server in servers:
        server.faults.set("cut_before_headers")
    got = await ask(penstock, "/v1/messages")
    assert orjson.loads(got.body).keys() == {"type", "error"}
    assert got.status == 500


async def waiting_at(servers: list[SimServer], count: int) -> None:
    """Wait until so many requests are at one of the servers."""
    await until(lambda: requests_at(servers) >= count)
    await asyncio.sleep(0.1)  # sent on, and no more on its way


async def test_three_engines_killed_at_once_poison_nothing(fleet: Fleet) -> None:
    servers, penstock = await fleet(4, pool={"policy": "round_robin"}, health=FAR_PROBES)
    assert {(await ask(penstock)).status for _ in range(12)} == {200}  # connections are kept
    for server in servers[:3]:
        server.faults.set("hang_before_headers")
        server.seen.clear()
    asking = [asyncio.create_task(ask(penstock, prompt=f"innocent {i}")) for i in range(8)]
    await waiting_at(servers[:3], 6)
    await servers[0].stop()
    await asyncio.sleep(0.02)  # who was there has moved on: some to those that die next
    await asyncio.gather(servers[1].stop(), servers[2].stop())
    got = await asyncio.gather(*asking)
    # Three quarters of what is in flight is more than the budget lets move: 502s, and no poison.
    assert {each.status for each in got} <= {200, 502}
    assert [each.status for each in got].count(200) >= 2
    assert not [each.body for each in got if b"poison" in each.body]
    assert not any(b"poison" in line for line in penstock.log)
    assert "poison" not in await attempts(penstock)
    again = [await ask(penstock, prompt=f"innocent {i}") for i in range(8)]
    assert [each.status for each in again] == [200] * 8


async def test_a_failing_fleet_gets_few_retries(simulate: Simulate, serve: Serve) -> None:
    """Without a budget each of 60 requests would be tried three times."""
    servers = await simulate(4)
    limits = {"first_byte_s": 1.5, "first_byte_s_per_1k_tokens": 0}  # all are in flight by then
    penstock = await serve(servers, health=FAR_PROBES, timeouts=limits)
    for server in servers:
        server.faults.set("hang_after_headers")
    answers = await asyncio.gather(*[ask(penstock, prompt=f"{i}", stream=True) for i in range(60)])
    assert {got.status for got in answers} == {504}
    counted = await attempts(penstock)
    # A fifth, and what the first to fail had, before a second one did; of those a fifth again.
    assert counted["timeout"] <= 60 + 12 + 15 + 8
    assert counted["over_budget"] >= 25


async def test_the_failure_of_one_backend_in_four_is_hidden(
    simulate: Simulate, serve: Serve
) -> None:
    """A quarter of what is in flight at once, which is more than the budget."""
    servers = await simulate(4, profile="default")
    # In turn: a policy that sees who finishes would give the one that hangs fewer.
    penstock = await serve(servers, pool={"policy": "round_robin"}, health=FAR_PROBES)
    servers[0].faults.set("hang_after_headers")
    asking = [asyncio.create_task(ask(penstock, prompt=f"{i} {i}", stream=True)) for i in range(80)]
    await penstock.until(lambda listing: listing[0]["requests_in_flight"] == 20, 5)
    await servers[0].stop()
    answers = await asyncio.gather(*asking)
    assert all(got.status == 200 and got.ended for got in answers)


@pytest.mark.parametrize("header", ["x-request-timeout", "x-stainless-read-timeout"])
async def test_no_engine_works_past_the_clients_time(fleet: Fleet, header: str) -> None:
    servers, penstock = await fleet(2)
    for server in servers:
        server.faults.set("hang_after_headers")
    for stream in (False, True):
        began_s = time.monotonic()
        got = await ask(penstock, stream=stream, headers=f"{header}: 0.3\r\n".encode())
        assert 0.25 < time.monotonic() - began_s < 3.0
        assert (got.status, error_of(got)["code"]) == (408, "request_timeout")
        assert got.header(b"x-should-retry") == b"false"
    assert requests_at(servers) == 2  # one each time: there is no time to try another
    listing = await penstock.backends()
    assert [each["state"] for each in listing] == ["ready", "ready"]
    assert [each["failures_total"] for each in listing] == [0, 0]


STREAM = CHAT | {"stream": True}


@pytest.fixture
async def restarting() -> AsyncIterator[SimProcess]:
    restarting = SimProcess("--profile", "instant")
    await restarting.start()
    yield restarting
    await restarting.kill()


async def chat(penstock: Penstock, **headers: str) -> Answered:
    return await ask_once(penstock, "/v1/chat/completions", STREAM, **headers)


async def parked(penstock: Penstock) -> str:
    """The number of requests that wait for a backend, as an autoscaler reads it."""
    found = [line for line in (await penstock.metrics()).splitlines() if "held_requests{" in line]
    return found[0].split()[1]


async def test_a_restart_of_the_only_backend_is_a_pause(
    restarting: SimProcess, serve: Serve
) -> None:
    penstock = await serve([restarting.url], admission={"hold_for_backend_s": 30})
    await restarting.kill()
    answers = [asyncio.create_task(chat(penstock)) for _ in range(20)]
    await asyncio.sleep(0.5)
    assert not any(answer.done() for answer in answers)
    assert await parked(penstock) == "20.0"
    await restarting.start()
    for got in await asyncio.gather(*answers):
        assert got.status == 200
        assert got.body.endswith(b"data: [DONE]\n\n")
    assert await parked(penstock) == "0.0"
