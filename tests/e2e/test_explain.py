"""Why a request goes where it goes, or waits, from the outside."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.e2e.forked import Ran, run
from tests.e2e.process import Fleet, Penstock
from tests.e2e.request import CHAT as CHAT_BODY
from tests.e2e.request import ask
from tests.e2e.test_admission import LONG as LONG_MESSAGES
from tests.e2e.test_admission import PROFILE, stream, until_waiting, waiting

SECRET = "a prompt that must be seen nowhere"
LONG: dict[str, Any] = {
    "model": "sim-model",
    "messages": [{"role": "user", "content": f"{SECRET}, again and again. " * 100}],
    "max_tokens": 4,
}
CHAT = "/v1/chat/completions"


async def explained(penstock: Penstock, body: bytes, query: str = "") -> Any:
    status, told = await penstock.ask_admin(f"/api/v1/explain{query}", "POST", data=body)
    assert SECRET not in str(told)
    return status, told


async def command(*arguments: str) -> Ran:
    return await run("explain", *arguments)


async def test_explain_predicts_the_backend(fleet: Fleet) -> None:
    _, penstock = await fleet(3)
    first = await ask(penstock, CHAT, LONG)
    home = first.headers["x-penstock-backend"]
    status, told = await explained(penstock, orjson.dumps(LONG))
    assert status == 200
    assert told["chosen"] == [home]
    assert (told["pool"], told["policy"], told["reason"]) == ("default", "token_cost", "cost")
    cached = {each["name"]: each["cached_tokens"] for each in told["candidates"]}
    assert cached.pop(home) > 0.8 * told["request"]["prompt_tokens"]
    assert set(cached.values()) == {0}
    for each in told["candidates"]:
        assert each["eligible"]
        assert each["cost_s"] == pytest.approx(sum(each["terms"].values()), abs=1e-5)
        assert bool(each["to_win"]) == (each["name"] != home)
    again = await ask(penstock, CHAT, LONG)
    assert again.headers["x-penstock-backend"] == home


UNEXPLAINED: tuple[tuple[bytes, str, int, str], ...] = (
    (b"", "", 400, "invalid_request"),
    (b"[", "", 400, "invalid_request"),
    (b'{"model": "nobody-has-it", "prompt": "x"}', "", 404, "model_not_found"),
    (b"{}", "?path=/v1/nothing", 404, "not_proxied"),
    (b'{"model": 7}', "?path=/v1/completions", 400, "invalid_request"),
    (b'{"prompt":' + b"[" * 100_000, "", 400, "invalid_request"),
    (b"{}", "?tenant=nobody", 404, "unknown_tenant"),
)


async def test_requests_that_cannot_be_explained(fleet: Fleet) -> None:
    _, penstock = await fleet(1)
    for body, query, status, code in UNEXPLAINED:
        got, told = await explained(penstock, body, query)
        assert (got, told["error"]["code"]) == (status, code), (body[:50], query)


async def test_the_command_prints_the_costs(fleet: Fleet, tmp_path: Path) -> None:
    _, penstock = await fleet(2)
    file = tmp_path / "request.json"
    file.write_bytes(orjson.dumps(LONG))
    status, out, err = await command(str(file), "--admin", penstock.admin_url)
    assert (status, err) == (0, "")
    assert "policy token_cost" in out
    assert "PREFILL" in out
    assert "-> b0 or b1 (cost)" in out
    assert SECRET not in out
    status, out, _ = await command(str(file), "--admin", penstock.admin_url, "--json")
    assert status == 0
    assert orjson.loads(out)["policy"] == "token_cost"
    status, _, err = await command(str(tmp_path / "none.json"), "--admin", penstock.admin_url)
    assert status == 1
    assert "cannot read" in err
    for header in ("x", "x y: z", ": z", "x: a\r\nhost: b", "x: \u00e9"):
        arguments = (str(file), "--admin", penstock.admin_url, "--header", header)
        status, _, err = await command(*arguments)
        assert status == 1
        assert "--header must look like" in err


CLASSES = [{"name": "interactive", "max_wait_s": 120.0}, {"name": "batch", "max_wait_s": 600.0}]
RULES = {"enabled": True, "classes": CLASSES, "default_class": "interactive"}
TENANTS = [{"name": name, "keys": [{"key": f"sk-{name}"}]} for name in ("one", "two")]
BODY = orjson.dumps(CHAT_BODY | {"messages": LONG_MESSAGES})


async def admission_of(penstock: Penstock, tenant: str, **headers: str) -> Any:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    path = f"explain?tenant={tenant}"
    return (await penstock.admin(path, "POST", data=BODY, headers=fields))["admission"]


async def test_the_reasons_for_waiting_are_shown(fleet: Fleet, tmp_path: Path) -> None:
    _, penstock = await fleet(1, profile=PROFILE, admission=RULES, tenants=TENANTS)
    assert await admission_of(penstock, "one") == {
        "class": "interactive",
        "outcome": "at_once",
        "backend": "b0",
    }
    key = "Bearer sk-one"
    answers = [
        asyncio.create_task(stream(penstock, number, authorization=key)) for number in range(30)
    ]
    await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)  # its pace is known

    told = await admission_of(penstock, "one")
    assert told["outcome"] == "wait"
    assert (told["backend"], told["waits_for"]) in {("b0", "prompts"), ("b0", "turn")}
    assert told["deadline_s"] == 120.0
    assert 1.0 < told["predicted_s"] < told["allowed_s"] == 72.0
    (ahead,) = told["ahead"]
    assert (ahead["class"], ahead["tenants"]) == ("interactive", 1)
    assert ahead["requests"] > 10
    assert ahead["tokens"] > 4_000 * ahead["requests"]
    other = await admission_of(penstock, "two")
    assert other["predicted_s"] < told["predicted_s"]  # it was given nothing yet
    lower = await admission_of(penstock, "two", x_penstock_priority="batch")
    assert (lower["class"], lower["ahead"][0]["class"]) == ("batch", "interactive")
    late = await admission_of(penstock, "one", x_request_timeout="0.5")
    assert (late["outcome"], late["error"]["code"]) == ("refuse", "deadline")
    assert int(late["error"]["headers"]["retry-after"]) >= 1

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
