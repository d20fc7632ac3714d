"""What limits attempts: poison, the budget, what a client bears, what a backend asks for."""

import asyncio
import re
import time
from typing import Any

import aiohttp
import orjson
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.answers import COMPLETIONS, Got, ask
from tests.e2e.process import Penstock, Script, Serve, Simulate

FAR_PROBES = {"interval_s": 60, "timeout_s": 5}


def asked(servers: list[SimServer]) -> int:
    return sum(len(server.seen) for server in servers)


def error_of(got: Got) -> Any:
    return orjson.loads(got.body)["error"]


async def attempts(penstock: Penstock) -> dict[str, int]:
    found = re.findall(r'penstock_attempts_total{reason="(\w+)"} (\d+)', await penstock.metrics())
    return {reason: int(count) for reason, count in found}


# Poison ----------------------------------------------------------------------------------------

DEATHS: tuple[dict[str, Any], ...] = (
    {"kind": "cut_before_headers"},
    {"kind": "cut_after_headers", "rst": True},
    {"kind": "error_event", "status": 500},
)


async def test_what_two_engines_died_on_is_refused_from_then_on(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(9)
    penstock = await serve(servers, health=FAR_PROBES)
    for number, fault in enumerate(DEATHS):
        for server in servers:
            server.faults.set(**fault)
            server.seen.clear()
        stream = bool(number % 2)
        got = await ask(penstock, prompt=f"kill {number}", stream=stream)
        assert (got.status, error_of(got)["code"]) == (500, "poison_request"), fault
        assert got.header(b"x-should-retry") == b"false"
        assert not got.header(b"retry-after")
        assert asked(servers) == 2, fault
        for server in servers:
            server.faults.clear()
        again = await ask(penstock, prompt=f"kill {number}", stream=stream)
        assert (again.status, error_of(again)["code"]) == (500, "poison_request")
        assert asked(servers) == 2
        assert (await ask(penstock, prompt=f"other {number}")).status == 200
    assert (await attempts(penstock))["poison"] == len(DEATHS)
    for server in servers:
        server.faults.set("cut_before_headers")
    got = await ask(penstock, "/v1/messages")
    assert orjson.loads(got.body).keys() == {"type", "error"}
    assert got.status == 500


async def test_failures_that_are_no_deaths_make_no_poison(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(3)
    penstock = await serve(servers, health=FAR_PROBES)
    for path, fault in (
        (COMPLETIONS, "done_only"),
        # So vLLM says in this API alone that it is full.
        ("/v1/responses", "cut_after_headers"),
    ):
        for server in servers:
            server.faults.clear()
            server.faults.set(fault)
        got = await ask(penstock, path, stream=True)
        assert (got.status, error_of(got)["code"]) == (502, "backend_error"), fault
        for server in servers:
            server.faults.clear()
        assert (await ask(penstock, path, stream=True)).status == 200, fault


async def test_a_server_that_died_of_a_request_on_a_kept_connection_counts(
    simulate: Simulate, serve: Serve
) -> None:
    """The second attempt at the same server finds nobody: a death, no mere refusal."""
    servers = await simulate(4)
    penstock = await serve(servers, pool={"policy": "round_robin"}, health=FAR_PROBES)
    for _ in range(4):
        assert (await ask(penstock)).status == 200
    for server in servers:
        server.faults.set("hang_before_headers")
        server.seen.clear()
    asking = asyncio.create_task(ask(penstock, prompt="kill"))
    for _ in range(2):
        async with asyncio.timeout(5):
            while not (busy := [s for s in servers if len(s.seen) and s.connections]):
                await asyncio.sleep(0.005)
        for server in busy:
            await server.stop()
    got = await asking
    assert (got.status, error_of(got)["code"]) == (500, "poison_request")
    assert asked(servers) == 2


async def waiting_at(servers: list[SimServer], count: int) -> None:
    """Wait until so many requests are at one of the servers."""
    async with asyncio.timeout(5):
        while asked(servers) < count:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)  # sent on, and no more on its way


async def test_a_rolling_restart_makes_no_poison(simulate: Simulate, serve: Serve) -> None:
    """Each is drained and then killed; whoever was there moves to the next that will be."""
    servers = await simulate(3)
    tenants = [{"name": name, "keys": [{"key": name * 20}]} for name in "ab"]
    penstock = await serve(servers, health=FAR_PROBES, tenants=tenants)
    for server in servers[:2]:
        server.faults.set("hang_before_headers")
    key = b"Authorization: Bearer %b\r\n"

    async def want(backend: str, state: str) -> None:
        url = f"{penstock.admin_url}/api/v1/backends/{backend}/{state}"
        async with aiohttp.ClientSession() as session, session.post(url) as answer:
            assert answer.status == 200

    await want("b1", "drain")
    await want("b2", "drain")
    asking = [
        asyncio.create_task(ask(penstock, prompt=f"innocent {i}", headers=key % (b"a" * 20)))
        for i in range(3)  # as many as the budget always lets move
    ]
    for dying, (backend, following) in enumerate((("b0", "b1"), ("b1", "b2"))):
        await waiting_at([servers[dying]], 3)
        await want(backend, "drain")
        await want(following, "ready")
        await servers[dying].stop()
    answers = await asyncio.gather(*asking)
    assert [(got.status, got.body) for got in answers if got.status != 200] == []
    got = await ask(penstock, prompt="innocent 0", headers=key % (b"b" * 20))
    assert got.status == 200


async def test_three_engines_killed_at_once_make_no_poison(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(4)
    penstock = await serve(servers, pool={"policy": "round_robin"}, health=FAR_PROBES)
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


# The budget --------------------------------------------------------------------------------------


async def test_a_fleet_that_fails_gets_few_retries(simulate: Simulate, serve: Serve) -> None:
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


async def test_a_backend_of_four_that_fails_all_it_has_is_never_seen(
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


# Patience --------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["x-request-timeout", "x-stainless-read-timeout"])
async def test_nobody_works_for_a_client_that_will_have_gone(
    simulate: Simulate, serve: Serve, header: str
) -> None:
    servers = await simulate(2)
    penstock = await serve(servers)
    for server in servers:
        server.faults.set("hang_after_headers")
    for stream in (False, True):
        began_s = time.monotonic()
        got = await ask(penstock, stream=stream, headers=f"{header}: 0.3\r\n".encode())
        assert 0.25 < time.monotonic() - began_s < 3.0
        assert (got.status, error_of(got)["code"]) == (408, "request_timeout")
        assert got.header(b"x-should-retry") == b"false"
    assert asked(servers) == 2  # one each time: there is no time to try another
    listing = await penstock.backends()
    assert [each["state"] for each in listing] == ["ready", "ready"]
    assert [each["failures_total"] for each in listing] == [0, 0]


async def test_a_whole_request_is_timed_and_a_silence_only_till_the_answer(
    simulate: Simulate, serve: Serve
) -> None:
    (server,) = await simulate(profile="steady-50")
    penstock = await serve([server])
    got = await ask(
        penstock, stream=True, max_tokens=40, headers=b"x-stainless-read-timeout: 0.4\r\n"
    )
    assert (got.status, got.ended) == (200, True)
    got = await ask(penstock, stream=True, max_tokens=500, headers=b"x-request-timeout: 0.4\r\n")
    assert (got.status, got.ended) == (200, False)
    assert got.last_event["error"]["code"] == "stream_broken"
    async with asyncio.timeout(2):
        while not server.engine.idle:
            await asyncio.sleep(0.01)
    got = await ask(penstock, headers=b"x-request-timeout: never\r\nx-stainless-timeout: -1\r\n")
    assert got.status == 200


async def test_many_answers_have_the_time_of_many(simulate: Simulate, serve: Serve) -> None:
    """Prompts times choices: an engine may make them one after the other."""
    servers = await simulate(2)
    limits = {"first_byte_s": 0.3, "first_byte_s_per_1k_tokens": 0}
    penstock = await serve(servers, timeouts=limits)
    for server in servers:
        server.faults.set("hang_after_headers")
    for many in ({"n": 50}, {"prompt": ["x"] * 50}):
        asking = asyncio.create_task(ask(penstock, max_tokens=1, **many))
        await asyncio.sleep(2.0)  # one of them would have had 0.4 s
        assert not asking.done()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


# What backends answer --------------------------------------------------------------------------


async def test_the_longest_wait_that_a_busy_backend_hinted_is_passed_on(
    serve: Serve, scripted: Script
) -> None:
    full = b"HTTP/1.1 %b Busy\r\nretry-after: %b\r\ncontent-length: 0\r\n\r\n"
    for hints, wanted in (((b"7", b"3"), b"7"), ((b"7", b"soon"), b"7"), ((b"-1", b"x"), b"1")):
        for status in (b"429", b"503"):
            servers = [await scripted("m", full % (status, hint)) for hint in hints]
            penstock = await serve(servers, admission={"enabled": False})
            got = await ask(penstock, model="m")
            assert (got.status, error_of(got)["code"]) == (429, "overloaded")
            assert got.header(b"retry-after") == wanted


async def test_more_clients_than_the_engines_have_places_are_all_served(
    simulate: Simulate, serve: Serve
) -> None:
    """Twelve places, and 16 clients that ask again and again."""
    servers = await simulate(3, max_queued=4, profile="8b-1xh100")
    penstock = await serve(servers, pool={"policy": "round_robin"})

    async def client() -> list[int]:
        return [(await ask(penstock, max_tokens=4)).status for _ in range(3)]

    statuses = await asyncio.gather(*[client() for _ in range(16)])
    assert {status for each in statuses for status in each} == {200}
    assert (await attempts(penstock))["busy"] > 0
    assert [each["failures_total"] for each in await penstock.backends()] == [0, 0, 0]


async def test_a_500_of_two_backends_passes_and_counts(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(2)
    penstock = await serve(servers, pool={"policy": "round_robin"}, health=FAR_PROBES)
    for server in servers:
        server.faults.set("internal_error", times=2)
    for stream in (True, False):
        got = await ask(penstock, stream=stream)
        assert (got.status, error_of(got)["message"]) == (500, "Internal Server Error")
        assert got.header(b"x-penstock-attempts") == b"2"
    assert [each["failures_total"] for each in await penstock.backends()] == [2, 2]
    assert (await attempts(penstock))["internal"] == 4


async def test_no_client_sees_the_500s_of_one_backend(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(3)
    penstock = await serve(servers, pool={"policy": "round_robin"}, health=FAR_PROBES)
    servers[1].faults.set("internal_error")
    statuses: list[int] = []
    for number in range(5):
        asking = [ask(penstock, stream=number % 2 == 0) for _ in range(12)]
        statuses += [got.status for got in await asyncio.gather(*asking)]
    assert set(statuses) == {200}
    assert (await attempts(penstock))["internal"] > 0


async def test_what_one_backend_holds_is_not_tried_elsewhere(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(2)
    penstock = await serve(servers, admission={"enabled": False})
    made = await ask(penstock, "/v1/responses")
    holder = servers[int(made.header(b"x-penstock-backend")[1:])]
    other = servers[1 - servers.index(holder)]
    other.seen.clear()
    holder.faults.set("busy")
    previous = orjson.loads(made.body)["id"]
    got = await ask(penstock, "/v1/responses", previous_response_id=previous)
    assert (got.status, error_of(got)["code"]) == (429, "overloaded")
    assert len(other.seen) == 0
    holder.faults.clear()
    await asyncio.sleep(1.0)  # until then it is left alone
    assert (await ask(penstock, "/v1/responses", previous_response_id=previous)).status == 200


# The black hole --------------------------------------------------------------------------------


async def test_what_fails_fast_attracts_nothing(simulate: Simulate, serve: Serve) -> None:
    """Its 500s pass, so they are seen; but after a moment hardly anything goes there."""
    servers = await simulate(4, profile="default")
    penstock = await serve(servers)
    servers[0].faults.set("internal_error")
    over = False

    async def keep_asking(worker: int) -> None:
        count = 0
        while not over:
            count += 1
            await ask(penstock, prompt=f"{worker} {count}", max_tokens=4, stream=True)

    workers = [asyncio.create_task(keep_asking(worker)) for worker in range(8)]
    await asyncio.sleep(5)
    before = [each["requests_total"] for each in await penstock.backends()]
    await asyncio.sleep(3)
    after = [each["requests_total"] for each in await penstock.backends()]
    over = True
    await asyncio.gather(*workers)
    hole, *others = (late - early for early, late in zip(before, after, strict=True))
    print(f"a backend that fails at once got {hole} of {hole + sum(others)} requests")
    assert sum(others) > 50
    assert hole / (hole + sum(others)) < 0.02
