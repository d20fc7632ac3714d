"""What /metrics tells of a running fleet, and what nobody can make it tell."""

import asyncio
from pathlib import Path
from time import time

import aiohttp
import orjson
import pytest
from cryptography import x509

from tests.certificates import issue
from tests.e2e.process import Serve, Simulate
from tests.e2e.sim_process import SimProcess
from tests.e2e.told import PROMPT, complete, samples_of, told, until

COSTS = {"cost_per_hour": 36_000.0}  # 10 a second


async def test_requests_are_told_by_backend_and_model(simulate: Simulate, serve: Serve) -> None:
    first, second = await simulate(2, profile="steady-50")
    penstock = await serve([first, second], pool={"policy": "round_robin"})
    first.faults.set("busy", times=1)
    async with aiohttp.ClientSession() as session:
        for _ in range(4):
            await complete(penstock, session, model="sim-model", stream=True)
    found = await until(
        penstock,
        lambda found: bool(found.get("penstock_backend_engine_steps_total{backend=b1}")),
        10,
    )
    b1 = "backend=b1,model=sim-model,pool=default"
    served = found[f"penstock_backend_request_duration_seconds_count{{{b1}}}"]
    assert served >= 2
    assert found[f"penstock_backend_time_to_first_token_seconds_count{{{b1}}}"] == served
    assert found[f"penstock_backend_inter_token_latency_seconds_count{{{b1}}}"] > 0
    labels = "backend=b1,pool=default,reason"
    assert found[f"penstock_backend_attempts_total{{{labels}=ok}}"] == served
    assert found["penstock_backend_attempts_total{backend=b0,pool=default,reason=busy}"] == 1
    assert sum(v for k, v in found.items() if k.startswith("penstock_backend_routed_total{")) == 4
    short = "penstock_time_to_first_token_by_prompt_seconds_count{pool=default,prompt=1k}"
    assert found[short] == found["penstock_time_to_first_token_seconds_count{pool=default}"] > 0
    for name in ("preemptions", "prefix_queries_tokens", "engine_prompt_tokens"):
        assert f"penstock_backend_{name}_total{{backend=b1}}" in found
    steps = found["penstock_backend_engine_steps_total{backend=b1}"]
    assert found["penstock_backend_engine_step_tokens_total{backend=b1}"] >= steps
    waiting = "penstock_backend_engine_waiting_by_reason{backend=b1,reason"
    assert (found[f"{waiting}=capacity}}"], found[f"{waiting}=deferred}}"]) == (0, 0)
    assert found["penstock_config_reload_success_timestamp_seconds{}"] == pytest.approx(
        time(), abs=60
    )


async def test_whoever_invents_names_adds_no_series(simulate: Simulate, serve: Serve) -> None:
    """Models, paths, tenants, sessions and headers are the client's to choose."""
    tenants = [{"name": "t", "keys": [{"key": "sk-" + "k" * 40}]}]
    penstock = await serve(await simulate(2), tenants=tenants, limits={"connections": 500})
    counts = []
    async with aiohttp.ClientSession() as session:
        for batch in range(3):
            for number in range(40):
                name = f"evil-{batch}-{number}"
                key = "sk-" + "k" * 40 if number % 2 else f"sk-{name}"
                headers = {
                    "authorization": f"Bearer {key}",
                    "x-session-id": name,
                    "x-penstock-tenant": name,
                }
                for path in ("/v1/completions", f"/v1/{name}", "/v1/chat/completions"):
                    asked = PROMPT | {"model": name, "user": name, "priority": number}
                    async with session.post(
                        penstock.url + path, json=asked, headers=headers
                    ) as answer:
                        await answer.read()
            async with session.post(
                f"{penstock.url}/v1/completions",
                json=PROMPT,
                headers={"authorization": "Bearer sk-" + "k" * 40},
            ) as answer:
                assert answer.status == 200
            text = await penstock.metrics()
            assert "evil" not in text
            counts.append(len(samples_of(text)))
    assert counts[1] == counts[2]


async def test_off_loopback_costs_are_told_only_to_who_has_a_token(
    simulate: Simulate, serve: Serve
) -> None:
    admin = {"token": "sk-admin-token-1", "metrics_token": "sk-metrics-token-1"}
    penstock = await serve(
        await simulate(1), admin=admin | {"host": "0.0.0.0", "port": 0}, pool=COSTS
    )
    texts = []
    async with aiohttp.ClientSession() as session:
        assert await complete(penstock, session) == 200
        for token in ("", "wrong", *admin.values()):
            headers = {"authorization": f"Bearer {token}"} if token else {}
            async with session.get(f"{penstock.admin_url}/metrics", headers=headers) as answer:
                texts.append(await answer.text())
    assert ["penstock_cost" in text for text in texts] == [False, False, True, True]


async def test_a_reload_changes_what_a_pool_costs_from_then_on(
    simulate: Simulate, serve: Serve
) -> None:
    penstock = await serve(await simulate(2), pool=COSTS)
    before = await told(penstock)
    assert "penstock_cost_per_1k_tokens{pool=default}" not in before
    assert 20.0 <= before["penstock_cost_total{pool=default}"] < 2_000.0
    async with aiohttp.ClientSession() as session:
        assert await complete(penstock, session) == 200
    found = await told(penstock)
    tokens = sum(
        found[f"penstock_{kind}_tokens_total{{pool=default}}"] for kind in ("prompt", "completion")
    )
    price, total = (
        found[f"penstock_cost_{name}{{pool=default}}"] for name in ("per_1k_tokens", "total")
    )
    assert price == pytest.approx(1_000 * total / tokens, rel=0.01)
    pool = orjson.loads(penstock.config.read_bytes())["pools"][0]
    assert (await penstock.reload(pools=[pool | {"cost_per_hour": -1}]))[0] == 422
    read = "penstock_config_reload_success_timestamp_seconds{}"
    assert (await told(penstock))[read] == before[read]
    assert (await penstock.reload(pools=[pool | {"cost_per_hour": 0}]))[0] == 200
    first = (await told(penstock))["penstock_cost_total{pool=default}"]
    assert (await told(penstock))["penstock_cost_total{pool=default}"] == first > total
    assert (await penstock.reload(pools=[pool | {"cost_per_hour": None}]))[0] == 200
    last = await told(penstock)
    assert last[read] > before[read]
    assert last["penstock_cost_total{pool=default}"] == first
    assert "penstock_cost_per_1k_tokens{pool=default}" not in last


async def test_a_start_is_timed_from_its_first_sign_to_its_first_token(serve: Serve) -> None:
    server = SimProcess("--profile", "instant")
    await server.start()
    try:
        penstock = await serve([server.url])
        name = "penstock_backend_cold_start_seconds{backend=b0}"
        async with aiohttp.ClientSession() as session:
            assert await complete(penstock, session) == 200
            # It was ready before it was looked at, unless its first probe was late.
            before_s = (await told(penstock)).get(name)
            await server.kill()
            await penstock.until(lambda listing: listing[0]["state"] == "ejected", 5)
            await server.start()
            await penstock.until(lambda listing: listing[0]["state"] in ("ready", "warming"), 10)
            assert await complete(penstock, session) == 200
        start_s = (await told(penstock))[name]
        assert 0.0 < start_s < 60.0
        assert start_s != before_s
    finally:
        await server.kill()


async def test_the_end_of_own_certificates_is_told(
    simulate: Simulate, serve: Serve, tmp_path: Path
) -> None:
    files = issue(tmp_path)
    penstock = await serve(
        await simulate(1), listen={"port": 0, "host": "127.0.0.1", "tls": files.settings}
    )
    found = await told(penstock)
    ends_s = found["penstock_certificate_expiry_timestamp_seconds{pool=,use=listen}"]
    assert ends_s > time()
    assert ends_s == pytest.approx(end_of(files.cert), abs=1)


def end_of(cert: Path) -> float:
    return x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc.timestamp()


async def test_a_long_text_is_whole_for_slow_readers_too(serve: Serve) -> None:
    backends = [{"name": f"gpu-{i}", "url": "http://127.0.0.1:1"} for i in range(300)]
    penstock = await serve([], pool={"backends": backends}, ready=0)
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{penstock.admin_url}/metrics") as answer:
            whole = await answer.read()
            assert int(answer.headers["content-length"]) == len(whole) > 150_000
        async with session.head(f"{penstock.admin_url}/metrics") as answer:
            assert (answer.status, await answer.read()) == (200, b"")
    found = samples_of(whole.decode())
    assert sum(name.startswith("penstock_backend_can_serve{") for name in found) == 300
    reader, writer = await asyncio.open_connection("127.0.0.1", penstock.admin_port, limit=1_024)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    got = b""
    while more := await reader.read(4_096):
        got += more
        await asyncio.sleep(0.001)
    writer.close()
    assert len(got.partition(b"\r\n\r\n")[2]) > 150_000
