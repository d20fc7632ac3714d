"""Recent requests and access lines: where the time of requests went, and nothing private."""

import re
from typing import Any

import aiohttp
import orjson
import pytest

from tests.e2e.forked import run
from tests.e2e.process import Fleet
from tests.e2e.request import CHAT, ask, fetch

SECRET = "canary prompt 91c2"
KEYS = {name: f"sk-canary-{name}-0123456789abcdef" for name in ("victim", "attacker")}
TENANTS = [{"name": name, "keys": [{"key": bearer}]} for name, bearer in KEYS.items()]
PATH = "/v1/chat/completions"
BODY = CHAT | {"messages": [{"role": "user", "content": SECRET}]}


def bearer(name: str) -> str:
    return f"Bearer {KEYS[name]}"


async def test_a_failover_is_shown_and_nothing_secret(fleet: Fleet) -> None:
    servers, penstock = await fleet(
        2, profile="steady-50", pool={"policy": "round_robin"}, tenants=TENANTS
    )
    outputs = []
    for number in range(4):
        if number == 2:
            servers[0].faults.set("cut_before_headers", times=1)
            servers[0].drop_connections()
        got = await ask(
            penstock,
            PATH,
            BODY | {"stream": True},
            authorization=bearer("victim"),
            x_penstock_timing="1",
            x_request_id=f"id-{number}",
        )
        assert got.status == 200
        timing = got.headers["server-timing"]
        assert re.fullmatch(r"(\w+;dur=[\d.]+(, )?)+", timing)
        assert ("failed;dur=" in timing) == (got.headers["x-penstock-attempts"] == "2")
        outputs.append(timing)
    assert sum("failed;dur=" in each for each in outputs) == 1
    wrong = await ask(penstock, PATH, BODY, authorization="Bearer sk-canary-wrong")
    assert wrong.status == 401

    for arguments in (("requests",), ("requests", "--slow"), ("requests", "--failed", "--json")):
        status, out, _ = await run(*arguments, "--admin", penstock.admin_url)
        assert status == 0
        outputs.append(out)
    assert "tokens" in outputs[4]
    assert "401 unauthorized" in outputs[4]
    assert orjson.loads(outputs[-1])[0]["error"] == "unauthorized"
    (lost,) = [each for each in await penstock.admin("requests") if each["attempts"] == 2]
    status, out, _ = await run("trace", lost["id"], "--admin", penstock.admin_url)
    assert status == 0
    assert "The attempt at b0 failed: reset." in out
    assert "tenant victim" in out
    status, _, err = await run("trace", "nobody/knows?it", "--admin", penstock.admin_url)
    assert (status, "No request with this id is kept" in err) == (1, True)
    outputs += [out, orjson.dumps(await penstock.admin("requests?limit=500")).decode()]
    await penstock.lines(5)
    (line,) = [each for each in penstock.access_lines if each.get("attempts") == 2]
    assert (line["pool"], line["class"]) == ("default", "standard")
    assert line["failed"][0]["failure"] == "reset"
    assert 0 <= line["overhead_ms"] <= line["sent_ms"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", line["at"])
    outputs.append(str(penstock.access_lines))
    for secret in ("canary", *[server.url for server in servers]):
        assert not [each for each in outputs if secret in each]


async def test_access_lines_as_text(fleet: Fleet) -> None:
    _, penstock = await fleet(1, log={"format": "text"})
    await ask(penstock, PATH, BODY, x_request_id="id-7")
    await penstock.lines(1)
    line = penstock.access_lines[0]["text"]
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z 200 +[\d.]+ms +[\d.]+ms b0 ", line)
    assert line.endswith(" reason=only id=id-7\n")
    assert SECRET not in line


PROMPT: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 5}


async def test_every_request_has_an_access_line(fleet: Fleet) -> None:
    (server,), penstock = await fleet()
    url, stream = penstock.url + "/v1/completions", PROMPT | {"stream": True}
    await fetch(f"{url}?key=k", "POST", json=stream, headers={"x-request-id": "id-1"})
    await fetch(f"{penstock.url}/nowhere")
    await fetch(url, "POST", data=b"[]")
    server.faults.set("cut_mid_stream", tokens=2)
    with pytest.raises(aiohttp.ClientPayloadError):
        await fetch(url, "POST", json=stream)
    served, unknown, bad, broken = await penstock.lines(4)
    assert (served["request_id"], served["client"]) == ("id-1", "127.0.0.1")
    assert (served["method"], served["path"]) == ("POST", "/v1/completions")
    assert (served["status"], served["whole"], served["error"]) == (200, True, None)
    assert (served["backend"], served["attempts"], served["stream"]) == ("b0", 1, True)
    assert (served["prompt_tokens"], served["completion_tokens"]) == (4, 5)
    assert 0 < served["ttft_ms"] <= served["duration_ms"] < 2_000
    assert served["bytes"] > 500
    assert (unknown["status"], unknown["error"]) == (404, "unknown_path")
    assert unknown["path"] is None  # a client's text: it may hold anything
    assert (bad["status"], bad["error"]) == (400, "invalid_request")
    assert (broken["status"], broken["whole"], broken["error"]) == (200, False, "stream_broken")
    assert len({line["request_id"] for line in penstock.access_lines}) == 4
