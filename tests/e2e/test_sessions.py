"""Sessions, stored responses and responses in the background."""

import asyncio
import re
from typing import Any

import aiohttp
import orjson
import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Fleet, Penstock, Serve, Simulate
from tests.e2e.raw_backend import RawBackend, Script, answer
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
    found = re.findall(r'penstock_affinity_total{result="(\w+)"} (\S+)', await penstock.metrics())
    return {result: float(count) for result, count in found}


async def test_a_session_returns_to_its_backend(fleet: Fleet) -> None:
    servers, penstock = await fleet(3, **SESSIONS)
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


async def test_session_keys_in_bodies_count(fleet: Fleet) -> None:
    _, penstock = await fleet(4, **SESSIONS)
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


async def test_session_keys_go_to_the_backend_only(fleet: Fleet) -> None:
    servers, penstock = await fleet(2, **SESSIONS, log={"level": "debug"})
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


def stored_by(servers: list[SimServer]) -> list[int]:
    """How many requests about stored responses each server has seen."""
    return [sum(r.path.startswith("/v1/responses/") for r in server.seen) for server in servers]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_maker_of_a_response_is_asked(fleet: Fleet, stream: bool) -> None:
    servers, penstock = await fleet(4)
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


async def test_a_found_response_is_remembered(simulate: Simulate, serve: Serve) -> None:
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


async def test_all_backends_are_asked_for_a_response(fleet: Fleet) -> None:
    servers, penstock = await fleet(6)
    for server in servers:
        server.seen.clear()
    got = await ask(penstock, "/v1/responses/resp_none", method="GET")
    assert (got.status, got.json["error"]["code"]) == (404, "invalid_request")
    # The words of vLLM's own answer, which clients look for.
    assert "Response with id 'resp_none' not found" in got.json["error"]["message"]
    assert stored_by(servers) == [1] * 6


@pytest.mark.parametrize("request_of", ["get", "continue"])
async def test_503_while_a_possible_holder_is_unreachable(
    simulate: Simulate, serve: Serve, request_of: str
) -> None:
    servers = await simulate(3)
    await ask(servers[1], "/v1/responses", BODIES["/v1/responses"])
    penstock = await serve(servers)

    async def again() -> Got:
        if request_of == "get":
            return await ask(penstock, "/v1/responses/resp_id-1", method="GET")
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
    assert got.status == 200
    assert got.headers["x-penstock-backend"] == "b1"


async def test_a_drained_backend_still_serves_its_responses(fleet: Fleet) -> None:
    """Nothing new goes there, and what runs there can be polled and cancelled."""
    _, penstock = await fleet(2)
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


IN_BACKGROUND = {"model": "sim-model", "input": "A long story.", "background": True}


class Made:
    """What a backend tells of its responses: each is `in_progress` until it is said to be over."""

    def __init__(self) -> None:
        self.count = 0
        self.status = "in_progress"

    def __call__(self, request: bytes) -> Script:
        if request.startswith(b"POST"):
            self.count += 1
            return (answer(self._told(f"resp_{self.count}", "queued")),)
        number = request.split(b"/v1/responses/")[1].split(b" ")[0].decode()
        return (answer(self._told(number, self.status)),)

    def _told(self, name: str, status: str) -> bytes:
        return orjson.dumps({"id": name, "object": "response", "status": status, "output": []})


async def begin(session: aiohttp.ClientSession, penstock: Penstock) -> dict[str, Any]:
    async with session.post(f"{penstock.url}/v1/responses", json=IN_BACKGROUND) as told:
        assert told.status == 200
        return dict(await told.json())


async def test_a_background_response_keeps_its_place(raw_backend: RawBackend, serve: Serve) -> None:
    """Another one waits until it is over."""
    raw_backend.always = made = Made()
    penstock = await serve([raw_backend], pool={"max_requests": 1})
    first = (await ask(penstock, "/v1/responses", IN_BACKGROUND)).json
    second = asyncio.create_task(ask(penstock, "/v1/responses", IN_BACKGROUND))
    for _ in range(3):
        got = await ask(penstock, f"/v1/responses/{first['id']}", method="GET")
        assert got.json["status"] == "in_progress"
        await asyncio.sleep(0.1)
    assert not second.done()
    assert made.count == 1
    made.status = "completed"
    for told in (first, None):
        if told is None:
            async with asyncio.timeout(5):
                told = (await second).json
        got = await ask(penstock, f"/v1/responses/{told['id']}", method="GET")
        assert got.json["status"] == "completed"
    assert made.count == 2
