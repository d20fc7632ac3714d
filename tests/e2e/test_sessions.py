"""Sessions, stored responses and responses in the background."""

from typing import Any

import pytest

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Fleet, Penstock, Serve, Simulate
from tests.e2e.request import BODIES, Got, ask


def placed(got: Got) -> tuple[str, str]:
    assert got.status == 200
    return got.headers["x-penstock-backend"], got.headers["x-penstock-reason"]


async def until_state(penstock: Penstock, name: str, state: str) -> None:
    def is_so(listing: list[dict[str, Any]]) -> bool:
        return any(each["name"] == name and each["state"] == state for each in listing)

    await penstock.until(is_so, 10)


def stored_by(servers: list[SimServer]) -> list[int]:
    """How many requests about stored responses each server has seen."""
    return [sum(r.path.startswith("/v1/responses/") for r in server.seen) for server in servers]


async def test_the_maker_of_a_response_is_asked(fleet: Fleet) -> None:
    servers, penstock = await fleet(4)
    for i in range(8):
        body = BODIES["/v1/responses"] | {"stream": bool(i % 2)}
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
    assert (placed(got), got.headers["x-penstock-attempts"]) == (("b2", "affinity"), "1")


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
