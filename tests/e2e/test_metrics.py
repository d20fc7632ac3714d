"""What /metrics tells of a running fleet, and what nobody can make it tell."""

import asyncio
import re
import shutil
from pathlib import Path
from time import time

import aiohttp
import orjson
import pytest
from cryptography import x509
from prometheus_client.parser import text_string_to_metric_families

from tests.certificates import issue
from tests.e2e.process import ROOT, Fleet, Serve, Simulate
from tests.e2e.request import fetch
from tests.e2e.told import MIB, PROMPT, FakeExporter, complete, samples_of, told, until_told

COSTS = {"cost_per_hour": 36_000.0}  # 10 a second


async def test_invented_names_add_no_series(fleet: Fleet) -> None:
    """Models, paths, tenants, sessions and headers are the client's to choose."""
    key = "sk-" + "k" * 40
    _, penstock = await fleet(2, tenants=[{"name": "t", "keys": [{"key": key}]}])
    counts = []
    async with aiohttp.ClientSession() as session:
        for batch in range(3):
            for number in range(40):
                name = f"evil-{batch}-{number}"
                headers = {"authorization": f"Bearer {key if number % 2 else name}"}
                headers |= {"x-session-id": name, "x-penstock-tenant": name}
                body = PROMPT | {"model": name, "user": name, "priority": number}
                for path in ("/v1/completions", f"/v1/{name}", "/v1/chat/completions"):
                    await fetch(penstock.url + path, "POST", json=body, headers=headers)
            session.headers["authorization"] = f"Bearer {key}"
            assert await complete(penstock, session) == 200
            await asyncio.sleep(1.1)  # what is measured each second is there, too
            text = await penstock.metrics()
            assert "evil" not in text
            counts.append(len(samples_of(text)))
    assert counts[1] == counts[2]


async def test_off_loopback_costs_and_tenants_need_a_token(
    simulate: Simulate, serve: Serve
) -> None:
    admin = {"token": "sk-admin-token-1", "metrics_token": "sk-metrics-token-1"}
    penstock = await serve(
        await simulate(1),
        admin=admin | {"host": "0.0.0.0", "port": 0},
        pool=COSTS,
        tenants=[{"name": "others", "keys": [{"key": "sk-others-91ab77"}]}],
    )
    texts = []
    key = {"authorization": "Bearer sk-others-91ab77"}
    async with aiohttp.ClientSession(headers=key) as session:
        assert await complete(penstock, session) == 200
    await penstock.lines(1)  # it is counted
    async with aiohttp.ClientSession() as session:
        for token in ("", "wrong", *admin.values()):
            headers = {"authorization": f"Bearer {token}"} if token else {}
            async with session.get(f"{penstock.admin_url}/metrics", headers=headers) as answer:
                texts.append(await answer.text())
    for series in ("penstock_cost", 'tenant="others"'):
        assert [series in text for text in texts] == [False, False, True, True]


async def test_a_reload_changes_a_pools_cost(fleet: Fleet) -> None:
    _, penstock = await fleet(2, pool=COSTS)
    before = await told(penstock)
    assert "penstock_cost_per_1k_tokens{pool=default}" not in before
    assert 0.0 < before["penstock_cost_total{pool=default}"] < 2_000.0
    async with aiohttp.ClientSession() as session:
        assert await complete(penstock, session) == 200
    assert (await told(penstock))["penstock_cost_per_1k_tokens{pool=default}"] > 0
    pool = orjson.loads(penstock.config.read_bytes())["pools"][0]
    read = "penstock_config_reload_success_timestamp_seconds{}"
    for cost, status in ((-1, 422), (0, 200), (None, 200)):
        assert (await penstock.reload(pools=[pool | {"cost_per_hour": cost}]))[0] == status
        found = await told(penstock)
        assert (found[read] > before[read]) == (status == 200)
    assert found["penstock_cost_total{pool=default}"] > before["penstock_cost_total{pool=default}"]
    assert "penstock_cost_per_1k_tokens{pool=default}" not in found


async def test_the_expiry_of_certificates_is_exported(
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


NAMES = {
    "penstock_requests_total": {"pool", "backend", "code"},
    "penstock_request_duration_seconds_bucket": {"pool", "le"},
    "penstock_time_to_first_token_seconds_bucket": {"pool", "le"},
    "penstock_inter_token_latency_seconds_bucket": {"pool", "le"},
    "penstock_overhead_seconds_bucket": {"le"},
    "penstock_event_loop_lag_seconds_bucket": {"le"},
    "penstock_token_estimate_error_ratio_bucket": {"le"},
    "penstock_backend_queued_prefill_tokens": {"backend"},
    "penstock_backend_active_decode_tokens": {"backend"},
    "penstock_backend_requests_in_flight": {"backend"},
    "penstock_backend_state": {"backend", "state"},
    "penstock_prompt_tokens_total": {"pool"},
    "penstock_completion_tokens_total": {"pool"},
    "penstock_cached_tokens_total": {"pool"},
    "penstock_attempts_total": {"reason"},
    "penstock_client_aborts_total": {"phase"},
    "penstock_stream_failures_total": {"reason"},
    "penstock_build_info": {"version", "build"},
}


async def test_metrics_count_what_happened(fleet: Fleet) -> None:
    (server,), penstock = await fleet(profile="steady-50")
    async with aiohttp.ClientSession() as session:
        for stream in (True, True, False):
            assert await complete(penstock, session, stream=stream) == 200
        assert await complete(penstock, session, model="none") == 404
        assert await complete(penstock, session, "/nowhere") == 404
        server.faults.set("cut_mid_stream", tokens=2, times=1)
        with pytest.raises(aiohttp.ClientPayloadError):
            await complete(penstock, session, stream=True)
        server.faults.set("hang_before_headers", times=1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(complete(penstock, session), 0.05)
    families = list(text_string_to_metric_families(await penstock.metrics()))
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }
    labels = {sample.name: set(sample.labels) for f in families for sample in f.samples}
    for name, expected in NAMES.items():
        assert labels.get(name) == expected, name
    reference = (ROOT / "docs" / "metrics.md").read_text()
    for family in families:
        assert re.search(rf"`{family.name}(_total|_info)?`", reference), family.name
    pool = ("pool", "default")
    served = ("penstock_requests_total", ("backend", "b0"))
    assert samples[*served, ("code", "200"), pool] == 4
    assert samples[*served, ("code", "499"), pool] == 1
    unserved = sum(value for key, value in samples.items() if ("code", "404") in key)
    assert unserved == 2
    assert samples["penstock_completion_tokens_total", pool] == 12
    assert samples["penstock_prompt_tokens_total", pool] == 3 * 4
    assert samples["penstock_time_to_first_token_seconds_count", pool] == 3
    assert samples["penstock_inter_token_latency_seconds_count", pool] >= 4  # those read apart
    assert samples["penstock_attempts_total", ("reason", "ok")] == 3
    assert samples["penstock_stream_failures_total", ("reason", "cut")] == 1
    assert samples["penstock_client_aborts_total", ("phase", "prefill")] == 1
    state = ("penstock_backend_state", ("backend", "b0"))
    assert samples[*state, ("state", "ready")] == 1
    assert samples[*state, ("state", "ejected")] == 0
    for gauge in ("queued_prefill_tokens", "active_decode_tokens", "requests_in_flight"):
        assert samples[f"penstock_backend_{gauge}", ("backend", "b0")] == 0


async def test_gpu_metrics_are_shown(
    simulate: Simulate, serve: Serve, exporter: FakeExporter
) -> None:
    (server,) = await simulate()
    exporter.tell(42.0)
    backend = {"name": "b0", "url": server.url, "gpu_metrics_url": exporter.url}
    penstock = await serve([server], pool={"backends": [backend], "api_key": "sk-pool-key"})
    name = "penstock_backend_gpu_utilization_ratio{backend=b0}"
    found = await until_told(penstock, lambda found: name in found, 5)
    assert found[name] == 0.42
    assert found["penstock_backend_gpu_memory_used_bytes{backend=b0}"] == 70_000 * MIB
    assert found["penstock_backend_gpu_memory_free_bytes{backend=b0}"] == 1_000 * MIB
    assert all(head.startswith(b"GET /metrics HTTP/1.1\r\n") for head in exporter.asked)
    assert not any(b"sk-pool-key" in head for head in exporter.asked)
    pool = orjson.loads(penstock.config.read_bytes())["pools"][0]
    plain = {"name": "b0", "url": server.url}
    assert (await penstock.reload(pools=[pool | {"backends": [plain]}]))[0] == 200
    assert name not in await told(penstock)


BROKEN = {
    "timeout": None,
    "status_404": b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
    "no_gpus": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nup 1\n",
    "too_large": b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (2 * MIB),
    "unreachable": b"nonsense",
}


async def test_broken_exporters_harm_no_backend(
    simulate: Simulate, serve: Serve, exporters: list[FakeExporter]
) -> None:
    servers = await simulate(len(BROKEN))
    backends = []
    for reason, server, exporter in zip(BROKEN, servers, exporters, strict=True):
        exporter.answer = BROKEN[reason]
        backends.append({"name": reason, "url": server.url, "gpu_metrics_url": exporter.url})
    penstock = await serve(servers, pool={"backends": backends})
    for reason in BROKEN:
        await penstock.until_logged(f"GPU metrics cannot be read name={reason} reason={reason}", 8)
    for listed in await penstock.backends():
        assert (listed["state"], listed["last_probe"]["live"]["passed"]) == ("ready", True)
    async with aiohttp.ClientSession() as session:
        assert await complete(penstock, session) == 200
    log = b"".join(penstock.log)
    assert log.count(b"GPU metrics") == len(BROKEN)
    assert not [each for each in exporters if each.url.encode() in log]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian: prometheus)")
async def test_promtool_finds_no_fault(fleet: Fleet) -> None:
    _, penstock = await fleet()
    async with aiohttp.ClientSession() as session:
        assert await complete(penstock, session, stream=True) == 200
    process = await asyncio.create_subprocess_exec(
        *("promtool", "check", "metrics"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate((await penstock.metrics()).encode())
    assert (process.returncode, out.decode()) == (0, "")
