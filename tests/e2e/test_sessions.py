"""Sessions and stored responses through a real process: who is asked, and what is said of it."""

import asyncio
from typing import Any

import aiohttp
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import BODIES, CHAT, Got, ask

SESSIONS = {"pool": {"policy": "session"}}
KEY = "a-key-that-must-never-be-seen"


def placed(got: Got) -> tuple[str, str]:
    assert got.status == 200
    return got.headers["x-penstock-backend"], got.headers["x-penstock-reason"]


async def chat(penstock: Penstock, key: str, **fields: Any) -> tuple[str, str]:
    return placed(await ask(penstock, "/v1/chat/completions", CHAT | fields, x_session_id=key))


async def until_state(penstock: Penstock, name: str, state: str) -> None:
    def is_so(listing: list[dict[str, Any]]) -> bool:
        return any(each["name"] == name and each["state"] == state for each in listing)

    await penstock.until(is_so, 10)


async def counted(penstock: Penstock) -> dict[str, float]:
    found = {}
    for line in (await penstock.metrics()).splitlines():
        if line.startswith("penstock_affinity_total{"):
            found[line.split('"')[1]] = float(line.rpartition(" ")[2])
    return found


async def test_a_session_has_one_backend_and_gets_it_back(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(3)
    penstock = await serve(servers, **SESSIONS)
    homes = {}
    for number in range(12):
        homes[f"s{number}"], reason = await chat(penstock, f"s{number}")
        assert reason == "affinity"
    assert len(set(homes.values())) == 3
    for _ in range(3):
        for key, home in homes.items():
            assert await chat(penstock, key, stream=True) == (home, "affinity")
    servers[1].faults.set("refuse")
    servers[1].drop_connections()
    await until_state(penstock, "b1", "ejected")
    for key, home in homes.items():
        now, reason = await chat(penstock, key)
        assert (now == home, reason) == ((True, "affinity") if home != "b1" else (False, "spill"))
    servers[1].faults.clear()
    await until_state(penstock, "b1", "ready")
    for key, home in homes.items():
        assert await chat(penstock, key) == (home, "affinity")


async def test_a_failed_home_is_tried_first_and_spills(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(2)
    penstock = await serve(servers, **SESSIONS)
    home, _ = await chat(penstock, KEY)
    servers[int(home[1])].faults.set("busy", times=1)
    got = await ask(penstock, "/v1/chat/completions", CHAT, x_session_id=KEY)
    assert placed(got) == ("b1" if home == "b0" else "b0", "spill")
    assert got.headers["x-penstock-attempts"] == "2"
    assert await counted(penstock) == {"hit": 1, "spill": 1}  # a request counts once


async def test_keys_in_bodies_and_what_is_counted(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(4)
    penstock = await serve(servers, **SESSIONS)
    home, _ = await chat(penstock, "u-17")
    for fields in ({"user": "u-17"}, {"prompt_cache_key": "u-17", "user": "another"}):
        got = await ask(penstock, "/v1/chat/completions", CHAT | fields)
        assert placed(got) == (home, "affinity")
    spread = set()
    for _ in range(24):
        backend, reason = placed(await ask(penstock, "/v1/chat/completions", CHAT))
        spread.add(backend)
        assert reason == "cost"
    assert len(spread) == 4
    assert await counted(penstock) == {"hit": 3, "miss": 24}


async def test_other_policies_read_no_key(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate(2), pool={"policy": "least_tokens"})
    backends = {await chat(penstock, KEY) for _ in range(24)}
    assert backends == {("b0", "cost"), ("b1", "cost")}
    assert await counted(penstock) == {}


async def test_the_key_is_told_to_nobody_but_the_backend(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(2)
    penstock = await serve(servers, **SESSIONS, log={"level": "debug"})
    home, _ = await chat(penstock, KEY)
    await ask(penstock, "/v1/chat/completions", CHAT | {"user": KEY})
    seen = servers[int(home[1])].seen[0]
    assert ("x-session-id", KEY) in [(n.decode(), v.decode()) for n, v in seen.headers]
    servers[int(home[1])].faults.set("refuse")
    servers[int(home[1])].drop_connections()
    await chat(penstock, KEY)
    metrics = await penstock.metrics()
    await penstock.stop()
    for text in (metrics, repr(penstock.access_lines), b"".join(penstock.log).decode()):
        assert text
        assert KEY not in text


# Stored responses --------------------------------------------------------------------------------


def stored_by(servers: list[SimServer]) -> list[int]:
    """How many requests about stored responses each server has seen."""
    return [sum(r.path.startswith("/v1/responses/") for r in server.seen) for server in servers]


@pytest.mark.parametrize("stream", [False, True])
async def test_who_made_a_response_is_asked_and_nobody_else(
    simulate: Simulate, serve: Serve, stream: bool
) -> None:
    servers = await simulate(4)
    penstock = await serve(servers)
    body = BODIES["/v1/responses"] | {"stream": stream}
    for i in range(8):
        made = await ask(penstock, "/v1/responses", body, x_request_id=f"id-{i}")
        home = made.headers["x-penstock-backend"]
        before = stored_by(servers)
        got = await ask(penstock, f"/v1/responses/resp_id-{i}", method="GET")
        assert placed(got) == (home, "affinity")
        assert got.headers["x-penstock-attempts"] == "1"
        more = BODIES["/v1/responses"] | {"previous_response_id": f"resp_id-{i}"}
        got = await ask(penstock, "/v1/responses", more, x_request_id=f"then-{i}")
        assert placed(got) == (home, "affinity")
        cancelled = await ask(penstock, f"/v1/responses/resp_id-{i}/cancel")
        assert cancelled.headers["x-penstock-backend"] == home
        after = stored_by(servers)
        assert sum(after) - sum(before) == after[int(home[1])] - before[int(home[1])] == 2


async def test_one_found_by_asking_is_remembered(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(4)
    await ask(servers[2], "/v1/responses", BODIES["/v1/responses"])  # behind the proxy's back
    penstock = await serve(servers)
    for _ in range(2):
        got = await ask(penstock, "/v1/responses/resp_id-1", method="GET")
        assert got.headers["x-penstock-backend"] == "b2"
    assert (got.headers["x-penstock-reason"], got.headers["x-penstock-attempts"]) == (
        "affinity",
        "1",
    )


async def test_more_backends_are_asked_than_attempts_are_allowed(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(6)
    penstock = await serve(servers)
    for server in servers:
        server.seen.clear()
    got = await ask(penstock, "/v1/responses/resp_none", method="GET")
    assert (got.status, got.json["error"]["code"]) == (404, "invalid_request")
    # The words of vLLM's own answer, which clients look for.
    assert "Response with id 'resp_none' not found" in got.json["error"]["message"]
    assert stored_by(servers) == [1] * 6


@pytest.mark.parametrize("request_of", ["get", "cancel", "continue"])
async def test_unknown_is_not_said_while_one_cannot_be_asked(
    simulate: Simulate, serve: Serve, request_of: str
) -> None:
    servers = await simulate(3)
    await ask(servers[1], "/v1/responses", BODIES["/v1/responses"])
    penstock = await serve(servers)

    async def again() -> Got:
        if request_of == "get":
            return await ask(penstock, "/v1/responses/resp_id-1", method="GET")
        if request_of == "cancel":
            return await ask(penstock, "/v1/responses/resp_id-1/cancel")
        body = BODIES["/v1/responses"] | {"previous_response_id": "resp_id-1"}
        return await ask(penstock, "/v1/responses", body, x_request_id="id-2")

    servers[1].faults.set("refuse")
    servers[1].drop_connections()
    for _ in range(2):  # refused by it; then not asked, since it is known to be away
        got = await again()
        assert (got.status, got.json["error"]["code"]) == (503, "no_backend")
        assert "cannot be reached now" in got.json["error"]["message"]
        assert int(got.headers["retry-after"]) >= 1
        await until_state(penstock, "b1", "ejected")
    servers[1].faults.clear()
    await until_state(penstock, "b1", "ready")
    got = await again()
    assert got.status == (400 if request_of == "cancel" else 200)
    assert got.headers["x-penstock-backend"] == "b1"


async def test_a_remembered_one_waits_for_its_backend(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(3)
    penstock = await serve(servers)
    made = await ask(penstock, "/v1/responses", BODIES["/v1/responses"])
    home = made.headers["x-penstock-backend"]
    server = servers[int(home[1])]
    server.faults.set("refuse")
    server.drop_connections()
    await until_state(penstock, home, "ejected")
    got = await ask(penstock, "/v1/responses/resp_id-1", method="GET")
    assert (got.status, got.json["error"]["code"]) == (503, "no_backend")
    assert stored_by(servers) == [0, 0, 0]
    server.faults.clear()
    await until_state(penstock, home, "ready")
    got = await ask(penstock, "/v1/responses/resp_id-1", method="GET")
    assert placed(got) == (home, "affinity")


async def test_a_drained_backend_is_still_asked_for_what_it_made(
    simulate: Simulate, serve: Serve
) -> None:
    """Nothing new goes there, and what runs there can be polled and cancelled."""
    penstock = await serve(await simulate(2))
    made = await ask(penstock, "/v1/responses", BODIES["/v1/responses"])
    home = made.headers["x-penstock-backend"]
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{penstock.admin_url}/api/v1/backends/{home}/drain") as answer,
    ):
        assert answer.status == 200
    got = await ask(penstock, "/v1/responses/resp_id-1", method="GET")
    assert (got.status, *placed(got)) == (200, home, "affinity")
    body = BODIES["/v1/responses"] | {"previous_response_id": "resp_id-1"}
    got = await ask(penstock, "/v1/responses", body)
    assert (got.status, got.json["error"]["code"]) == (503, "no_backend")
    assert "cannot be reached now" in got.json["error"]["message"]


async def test_sessions_of_many_clients_at_once_stay_apart(
    simulate: Simulate, serve: Serve
) -> None:
    penstock = await serve(await simulate(4), **SESSIONS)
    keys = [f"client-{number % 20}" for number in range(100)]
    got = await asyncio.gather(*(chat(penstock, key) for key in keys))
    homes: dict[str, set[str]] = {}
    for key, (backend, _) in zip(keys, got, strict=True):
        homes.setdefault(key, set()).add(backend)
    assert all(len(each) == 1 for each in homes.values())


async def test_what_nobody_has_is_not_looked_for_again_and_again(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(8)
    penstock = await serve(servers)
    body = BODIES["/v1/responses"] | {"previous_response_id": "resp_gone", "user": "x" * 4_000_000}
    for _ in range(4):
        got = await ask(penstock, "/v1/responses/resp_none", method="GET")
        assert got.status == 404
    assert sum(stored_by(servers)) == len(servers)
    statuses = [(await ask(penstock, "/v1/responses", body)).status for _ in range(10)]
    assert set(statuses) <= {404, 503}
    sent = sum(len(each.seen) for each in servers) - sum(stored_by(servers))
    assert sent < 40  # of 80
