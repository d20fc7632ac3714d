"""Service levels of a real process: requests are counted, told and kept over reloads."""

import re
from typing import Any

import aiohttp
import orjson
import pytest

from tests.e2e.forked import run
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import CHAT, ask

CHATS = "/v1/chat/completions"
FIRST = {"ttft_s": {"p95": 5.0}, "e2e_s": {"p50": 10}, "availability": 0.99, "goodput": 0.9}
BATCH = {"pool": "default", "class": "batch", "error_rate": 0.01}
STREAM = CHAT | {"stream": True}


async def objectives(penstock: Penstock) -> dict[str, Any]:
    """What is told of each objective, by its pool, class and name."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{penstock.admin_url}/api/v1/slo") as answer,
    ):
        told = orjson.loads(await answer.read())
    return {f"{each['pool']}/{each['class']}/{each['slo']}": each for each in told}


async def counts(penstock: Penstock) -> dict[str, tuple[int, int]]:
    """All requests, and the bad ones."""
    told = await objectives(penstock)
    return {name: (each["requests"], each["bad"]) for name, each in told.items()}


async def test_requests_are_counted_and_told(simulate: Simulate, serve: Serve) -> None:
    (server,) = await simulate(1)
    penstock = await serve([server], slo=[FIRST, BATCH])
    for _ in range(5):
        assert (await ask(penstock, CHATS, STREAM)).status == 200
    assert (await ask(penstock, CHATS, CHAT, x_penstock_priority="batch")).status == 200
    assert (await ask(penstock, CHATS, CHAT | {"model": "none"})).status == 404
    assert await counts(penstock) == {
        "None/None/ttft_p95": (5, 0),
        "None/None/e2e_p50": (6, 0),
        "None/None/availability": (6, 0),
        "None/None/goodput": (6, 0),
        "default/batch/error_rate": (1, 0),
    }
    first = (await objectives(penstock))["None/None/ttft_p95"]
    assert (first["state"], first["budget_left"], first["compliance"]) == ("ok", 1.0, 1.0)
    assert 0.0 < first["measured_s"] < 5.0
    assert first["windows"]["5m"] == {"compliance": 1.0, "burn_rate": 0.0}

    server.faults.set("internal_error", path=CHATS)
    for _ in range(10):
        assert (await ask(penstock, CHATS, STREAM)).status == 500
    metrics = await penstock.metrics()
    labels = 'pool="*",priority="*",slo="availability"'
    assert f"penstock_slo_compliance_ratio{{{labels}}} 0.375" in metrics
    assert f'penstock_slo_requests_total{{{labels},verdict="bad"}} 10.0' in metrics
    assert f'penstock_slo_requests_total{{{labels},verdict="good"}} 6.0' in metrics
    (burn,) = re.findall(
        rf'penstock_slo_burn_rate{{{re.escape(labels)},window="5m"}} (\S+)', metrics
    )
    assert float(burn) == pytest.approx(62.5)
    assert 'penstock_slo_state{pool="*",priority="*",slo="ttft_p95"} 0.0' in metrics
    told = await objectives(penstock)
    assert told["None/None/availability"]["windows"]["1h"]["burn_rate"] == 62.5
    assert told["None/None/ttft_p95"]["requests"] == 5  # a failure at once says nothing of it


async def test_an_operator_sees_what_is_missed(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(1)
    slow = [{"pool": "default", "ttft_s": {"p95": 0.001}}]
    penstock = await serve(servers, slo=slow)
    for _ in range(9):
        assert (await ask(penstock, CHATS, STREAM)).status == 200
    assert not await slo_lines(penstock)  # nine are too few
    assert (await ask(penstock, CHATS, STREAM)).status == 200
    (line,) = await slo_lines(penstock)
    assert line.startswith(
        "SLO ttft_p95 of pool default is critical: 95% of first tokens took up to 0.0"
    ), line
    assert "0.000% of 10 requests are good, 95% is asked for" in line


async def slo_lines(penstock: Penstock) -> list[str]:
    _, out, _ = await run("status", "--admin", penstock.admin_url)
    return [line for line in out.splitlines() if line.startswith("SLO ")]


async def test_a_reload_keeps_the_counts_of_what_stays(simulate: Simulate, serve: Serve) -> None:
    servers = await simulate(1)
    penstock = await serve(servers, slo=[FIRST, BATCH])
    for _ in range(3):
        await ask(penstock, CHATS, STREAM)
        await ask(penstock, CHATS, STREAM, x_penstock_priority="batch")
    changed = FIRST | {"ttft_s": {"p95": 4.0}, "availability": 0.9}
    del changed["goodput"]
    added = {"pool": "default", "availability": 0.9}
    status, _ = await penstock.reload(slo=[added, changed, BATCH])
    assert status == 200
    assert await counts(penstock) == {
        "default/None/availability": (0, 0),  # new
        "None/None/ttft_p95": (0, 0),  # another time
        "None/None/e2e_p50": (6, 0),
        "None/None/availability": (6, 0),  # another share of the same requests
        "default/batch/error_rate": (3, 0),
    }
    assert (await objectives(penstock))["None/None/availability"]["objective"] == 0.9
    status, told = await penstock.reload(slo=[{"pool": "other", "availability": 0.9}])
    assert status == 422
    assert "slo[0].pool: there is no pool other: there are default" in str(told)
    assert (await counts(penstock))["None/None/e2e_p50"] == (6, 0)
    assert (await penstock.reload(slo=[]))[0] == 200
    assert await objectives(penstock) == {}
    await ask(penstock, CHATS, STREAM)
    assert "penstock_slo_requests_total{" not in await penstock.metrics()
