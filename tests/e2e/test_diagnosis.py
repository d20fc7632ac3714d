"""Why a pool is slow, and which service levels are missed, as a running process tells it."""

import asyncio
import re
from typing import Any

import pytest

from tests.e2e.forked import run
from tests.e2e.process import Fleet, Penstock, Serve, Simulate
from tests.e2e.request import CHAT, ask

WITHIN_S = 30.0  # ten fine looks, a second each, and what the window remembers


async def verdict(penstock: Penstock) -> dict[str, Any]:
    (told,) = await penstock.admin("verdict") or [{"kind": "none"}]
    return dict(told)


async def until_told(penstock: Penstock, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(WITHIN_S):
        while (told := await verdict(penstock))["kind"] != kind:
            await asyncio.sleep(0.2)
    return told


async def test_a_failing_backend_is_named_until_it_is_back(fleet: Fleet) -> None:
    (_, second), penstock = await fleet(2, health={"interval_s": 0.2, "rise": 1})
    await until_told(penstock, "fine")
    second.faults.set("health_503")
    told = await until_told(penstock, "failing")
    assert told["backend"] == "b1"
    assert "b1 is out" in told["sentence"]
    assert "restart it" in told["to_do"][0]
    assert 'penstock_bottleneck{kind="failing",pool="default"} 1.0' in await penstock.metrics()
    second.faults.clear()
    await until_told(penstock, "fine")


CHATS = "/v1/chat/completions"
LEVELS = {"ttft_s": {"p95": 5.0}, "e2e_s": {"p50": 10}, "availability": 0.99, "goodput": 0.9}
BATCH = {"pool": "default", "class": "batch", "error_rate": 0.01}
STREAM = CHAT | {"stream": True}


async def objectives(penstock: Penstock) -> dict[str, Any]:
    """What is told of each objective, by its pool, class and name."""
    told = await penstock.admin("slo")
    return {f"{each['pool']}/{each['class']}/{each['slo']}": each for each in told}


async def counts(penstock: Penstock) -> dict[str, tuple[int, int]]:
    """All requests, and the bad ones."""
    told = await objectives(penstock)
    return {name: (each["requests"], each["bad"]) for name, each in told.items()}


async def test_service_levels_count_requests(fleet: Fleet) -> None:
    (server,), penstock = await fleet(1, slo=[LEVELS, BATCH])
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


async def test_status_shows_missed_service_levels(simulate: Simulate, serve: Serve) -> None:
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
