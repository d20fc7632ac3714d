"""An operator asks why something waits, while requests wait in a real process."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from tests.e2e.forked import run
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import CHAT, ask
from tests.e2e.test_admission import LONG, PROFILE, stream, until_waiting, waiting

CLASSES = [{"name": "interactive", "max_wait_s": 120.0}, {"name": "batch", "max_wait_s": 600.0}]
RULES = {"enabled": True, "classes": CLASSES, "default_class": "interactive"}
TENANTS = [{"name": name, "keys": [{"key": f"sk-{name}"}]} for name in ("one", "two")]
BODY = orjson.dumps(CHAT | {"messages": LONG})


async def admin(penstock: Penstock, path: str, body: bytes | None = None, **headers: str) -> Any:
    method = "GET" if body is None else "POST"
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        aiohttp.ClientSession() as session,
        session.request(
            method, f"{penstock.admin_url}/api/v1/{path}", data=body, headers=fields
        ) as answer,
    ):
        return orjson.loads(await answer.read())


async def explained(penstock: Penstock, tenant: str, **headers: str) -> Any:
    told = await admin(penstock, f"explain?tenant={tenant}", BODY, **headers)
    return told["admission"]


async def test_an_operator_is_told_why_requests_wait(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    servers = await simulate(1, profile=PROFILE)
    penstock = await serve(servers, admission=RULES, tenants=TENANTS)
    assert await explained(penstock, "one") == {
        "class": "interactive",
        "outcome": "at_once",
        "backend": "b0",
    }
    key: dict[str, Any] = {"authorization": "Bearer sk-one"}
    answers = [asyncio.create_task(stream(penstock, number, **key)) for number in range(30)]
    await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)  # its pace is known

    told = await explained(penstock, "one")
    assert told["outcome"] == "wait"
    assert (told["backend"], told["waits_for"]) in {("b0", "prompts"), ("b0", "turn")}
    assert told["deadline_s"] == 120.0
    assert 1.0 < told["predicted_s"] < told["allowed_s"] == 72.0
    (ahead,) = told["ahead"]
    assert (ahead["class"], ahead["tenants"]) == ("interactive", 1)
    assert ahead["requests"] > 10
    assert ahead["tokens"] > 4_000 * ahead["requests"]
    other = await explained(penstock, "two")
    assert other["predicted_s"] < told["predicted_s"]  # it was given nothing yet
    lower = await explained(penstock, "two", x_penstock_priority="batch")
    assert (lower["class"], lower["ahead"][0]["class"]) == ("batch", "interactive")
    late = await explained(penstock, "one", x_request_timeout="0.5")
    assert (late["outcome"], late["error"]["code"]) == ("refuse", "deadline")
    assert int(late["error"]["headers"]["retry-after"]) >= 1

    queue = await admin(penstock, "queue")
    (pool,) = queue["pools"]
    assert {each["waits_for"] for each in pool["next"]} <= {"prompts", "turn"}
    assert {each["backend"] for each in pool["next"]} == {"b0"}
    first, batch = queue["classes"]
    assert first["next"] == {"pool": "default"} | pool["next"][0]
    assert batch["next"] is None
    one, two = await admin(penstock, "tenants")
    assert one["waiting_requests"] > 10
    assert one["waiting_tokens"] > 4_000 * one["waiting_requests"]
    assert (one["given_tokens"] > 4_000, one["given_share"]) == (True, 1.0)
    assert (two["given_tokens"], two["waiting_requests"]) == (0, 0)

    _, out, _ = await run("status", "--admin", penstock.admin_url)
    assert "  interactive: the next one of one has waited" in out
    file = tmp_path / "request.json"
    file.write_bytes(BODY)
    status, out, _ = await run("explain", str(file), "--admin", penstock.admin_url)
    assert status == 0
    assert "In the class interactive it would wait: first token in about" in out
    assert "Before it:" in out

    await asyncio.gather(*answers[:2])
    for answer in answers[2:]:
        answer.cancel()
    await until_waiting(penstock, 0)
    metrics = await penstock.metrics()
    assert "penstock_shed_total{" not in metrics  # a dry run refuses nobody
    # Beside the first prompt there was room for one more: nobody had measured the engine's speed.
    assert 'penstock_admitted_total{priority="interactive",waited="no"} 2.0' in metrics
    assert 'penstock_admitted_total{priority="interactive",waited="yes"}' in metrics
    assert "penstock_predicted_wait_error_ratio_count 0.0" not in metrics
    assert await waiting(penstock) == 0


async def test_a_budget_that_is_used_up_is_foreseen_and_not_charged(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    tenants = [TENANTS[0] | {"limits": {"requests_per_day": 1}}, TENANTS[1]]
    penstock = await serve(await simulate(1), admission=RULES, tenants=tenants)
    for _ in range(3):
        assert (await explained(penstock, "one"))["outcome"] == "at_once"
    got = await ask(penstock, "/v1/chat/completions", CHAT, authorization="Bearer sk-one")
    assert got.status == 200
    told = await explained(penstock, "one")
    assert (told["outcome"], told["error"]["status"]) == ("refuse", 429)
    assert told["error"]["code"] == "rate_limited"
    assert (await explained(penstock, "two"))["outcome"] == "at_once"
    assert "penstock_rate_limited_total{" not in await penstock.metrics()
    file = tmp_path / "request.json"
    file.write_bytes(BODY)
    arguments = ("explain", str(file), "--admin", penstock.admin_url, "--tenant", "one")
    status, out, _ = await run(*arguments)
    assert status == 1
    assert "it would be refused: 429 rate_limited, Retry-After " in out
