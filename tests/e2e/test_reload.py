"""Reloads of a running process: all of a file or nothing, and nothing lost on the way."""

import asyncio
import contextlib
import io
import os
import signal
from pathlib import Path
from typing import Any

from penstock.bench.sim.server import SimServer
from penstock.proxy.commands.cli import main
from penstock.proxy.commands.fleet_table import table
from tests.e2e.forked import run
from tests.e2e.process import Fleet, Penstock, Serve, Simulate, until
from tests.e2e.request import ask, stream
from tests.e2e.traffic import DONE, Traffic

# As many for the figures: `make reloads`.
RELOADS = int(os.environ.get("TEST_RELOADS", "20"))
REQUESTS_PER_RELOAD = 100 if RELOADS >= 100 else 40


def pool(*servers: SimServer | str, **options: Any) -> list[dict[str, Any]]:
    """Pools of one, its backends b0, b1…; an address may be given as `name=url`."""
    backends = []
    for number, server in enumerate(servers):
        name, _, url = server.rpartition("=") if isinstance(server, str) else ("", "", server.url)
        backends.append({"name": name or f"b{number}", "url": url})
    return [{"name": "default", "backends": backends} | options]


async def listing(penstock: Penstock) -> dict[str, dict[str, Any]]:
    """Backends in use by name."""
    return {each["name"]: each for each in await penstock.backends() if not each["removed"]}


async def until_logged(penstock: Penstock, text: bytes, count: int = 1) -> None:
    await until(lambda: sum(text in line for line in penstock.log) >= count, 10)


async def test_reloads_under_load_lose_nothing(simulate: Simulate, serve: Serve) -> None:
    """Backends added, removed, moved and changed in turn, by signal and by call."""
    servers = await simulate(5)
    penstock = await serve(servers[:3])
    a, b, c, d, e = servers
    pools = [
        pool(a, b, c, d),
        pool(a, b, policy="round_robin"),
        pool(a, c, e, policy="session"),  # b1 and b2 are other servers
        pool(a, d, c, models=["sim-model"]),
        [*pool(f"b0={a.url}"), {"name": "more", "backends": [{"name": "x", "url": b.url}]}],
        pool(a, b, c),
    ]
    async with Traffic(penstock.url) as traffic:
        for number in range(RELOADS):
            await traffic.until(number * REQUESTS_PER_RELOAD)
            changes = {
                "pools": pools[number % len(pools)],
                "timeouts": {"idle_s": 30 + number % 7},
                "health": {"interval_s": 0.2 + number % 3, "slow_start_s": 0},
            }
            if number % 2:
                status, said = await penstock.reload(**changes)
                assert status == 200, said
            else:
                penstock.configure(**changes)
                penstock.process.send_signal(signal.SIGHUP)
            await until_logged(penstock, b"proxy.reload.reload reloaded", number + 1)
        await traffic.until(RELOADS * REQUESTS_PER_RELOAD)
    print(f"{RELOADS} reloads, {traffic.whole} requests, {len(traffic.failed)} failed")
    assert not traffic.failed
    assert traffic.whole >= RELOADS * REQUESTS_PER_RELOAD
    await penstock.until_at_rest()
    async with asyncio.timeout(5):
        while any(each["removed"] for each in await penstock.backends()):
            await asyncio.sleep(0.05)


BAD = {
    "unknown key": b"nonsense: 1\n",
    "bad port": b"listen: {port: 99999}\npools: [{name: p, backends: [{name: a, url: 'x'}]}]\n",
    "no yaml": b"pools: [",
    "no secret": b"admin: {token_file: missing}\npools: [{name: p, backends: "
    b"[{name: a, url: 'http://127.0.0.1:1'}]}]\n",
    "no tokenizer": b"tokens: {estimator: huggingface, file: none.json}\n"
    b"pools: [{name: p, backends: [{name: a, url: 'http://127.0.0.1:1'}]}]\n",
}


async def test_the_command_reports_what_changed(fleet: Fleet) -> None:
    _, penstock = await fleet(2)
    good = penstock.config.read_bytes()
    arguments = ("reload", "--admin", penstock.admin_url)
    status, out, _ = await run(*arguments)
    assert (status, out) == (0, "reloaded: added none, removed none, kept 2\n")
    penstock.config.write_bytes(good.replace(b"b1", b"other"))
    status, out, _ = await run(*arguments)
    assert (status, out) == (0, "reloaded: added other, removed b1, kept 1\n")
    penstock.config.write_bytes(BAD["unknown key"])
    status, out, err = await run(*arguments)
    assert (status, out) == (2, "")
    assert "nonsense" in err
    assert "stays in use" in err


async def test_a_bad_file_changes_nothing(fleet: Fleet) -> None:
    """It is told by the call as `penstock check` tells it, in the log and as a metric."""
    _, penstock = await fleet(2)
    good = penstock.config.read_bytes()
    before = (await penstock.ask_admin("/api/v1/config"))[1]
    for number, (name, content) in enumerate(BAD.items()):
        penstock.config.write_bytes(content)
        status, said = await penstock.ask_admin("/api/v1/reload", "POST")
        checked = io.StringIO()
        with contextlib.redirect_stderr(checked):
            assert main(["check", str(penstock.config)]) == 2
        assert status == 422, name
        error = said["error"]
        assert error["code"] == "invalid_configuration"
        assert error["issues"] == checked.getvalue().splitlines(), name
        penstock.process.send_signal(signal.SIGHUP)
        last = error["issues"][-1].encode()
        await until_logged(penstock, b"not reloaded: " + last, 2)
        assert (await penstock.ask_admin("/api/v1/config"))[1] == before
        assert set(await listing(penstock)) == {"b0", "b1"}
        answer = await ask(penstock, "/v1/completions", {"prompt": "x", "max_tokens": number + 1})
        assert answer.status == 200
    assert "penstock_config_reload_success 0.0" in await penstock.metrics()
    penstock.config.write_bytes(good)
    assert (await penstock.reload())[0] == 200
    assert "penstock_config_reload_success 1.0" in await penstock.metrics()


async def test_a_removed_backend_ends_its_streams(simulate: Simulate, serve: Serve) -> None:
    a, b = await simulate(2, profile="steady-50")
    penstock = await serve([a])
    async with stream(penstock, max_tokens=150) as answer:
        assert (await penstock.reload(pools=pool(f"new={b.url}")))[1]["removed"] == ["b0"]
        await penstock.until(lambda all_: all_[0]["state"] == "ready", 5)
        (gone,) = [each for each in await penstock.backends() if each["removed"]]
        assert (gone["name"], gone["streams"], gone["can_serve"]) == ("b0", 1, False)
        shown = table(await penstock.backends())
        assert "removed" in shown
        assert [each["can_serve"] for each in await penstock.backends()] == [True, False]
        assert 'penstock_backend_requests_in_flight{backend="b0"} 1.0' in await penstock.metrics()
        connections = a.connections_total  # each probe makes one
        for _ in range(5):
            late = await ask(penstock, "/v1/completions", {"prompt": "x", "max_tokens": 1})
            assert late.headers["x-penstock-backend"] == "new"
        await asyncio.sleep(0.5)  # more than two intervals
        assert a.connections_total == connections
        text = await answer.read()
        assert text.endswith(DONE)
        assert text.count(b'"text":') == 150
    await penstock.until(lambda all_: [each["name"] for each in all_] == ["new"], 5)
    assert '"b0"' not in await penstock.metrics()
    async with asyncio.timeout(5):  # its pool is closed
        while a.connections:
            await asyncio.sleep(0.05)


async def test_ports_wait_for_a_restart(fleet: Fleet) -> None:
    _, penstock = await fleet()
    status, change = await penstock.reload(
        listen={"host": "127.0.0.1", "port": 1, "cors_origins": ["https://a.example"]},
        admin={"host": "127.0.0.1", "port": 1},
        limits={"body_bytes": 1024},
        paths=["GET /tokenizer_info"],
        log={"access": False},
        health={"interval_s": 0.1, "slow_start_s": 0},
    )
    assert status == 200
    assert change["needs_restart"] == ["listen.port", "admin.port"]
    await until_logged(penstock, b"needs_restart=listen.port,admin.port")
    told = await run("status", "--admin", penstock.admin_url)
    assert "\nChanged settings that wait for a restart: listen.port, admin.port\n" in told.out
    _, config = await penstock.ask_admin("/api/v1/config")
    assert config["settings"]["listen"]["port"] == 0
    assert config["settings"]["limits"]["body_bytes"] == 1024
    too_large = await ask(penstock, "/v1/completions", b"x" * 2000)
    assert too_large.status == 413
    proxied = await ask(penstock, "/tokenizer_info", method="GET")
    assert proxied.headers["x-penstock-backend"] == "b0"
    cors = await ask(penstock, "/health", method="GET", origin="https://a.example")
    assert cors.headers["access-control-allow-origin"] == "https://a.example"
    lines = len(penstock.access_lines)
    await ask(penstock, "/v1/completions", {"prompt": "x", "max_tokens": 1})
    await asyncio.sleep(0.3)
    assert len(penstock.access_lines) == lines
    ports = {"host": "127.0.0.1", "port": 0}
    assert (await penstock.reload(listen=ports, admin=ports))[1]["needs_restart"] == []
    told = await run("status", "--admin", penstock.admin_url)
    assert "Changed settings" not in told.out


async def test_keys_of_pools_change(fleet: Fleet, tmp_path: Path) -> None:
    """For requests and for probes."""
    (server,), penstock = await fleet(api_key="second")
    assert (await ask(penstock, "/v1/completions", {"prompt": "x"})).status == 401
    assert (await listing(penstock))["b0"]["models"] == []
    (tmp_path / "key").write_text("second\n")
    pools = pool(server, api_key_file=str(tmp_path / "key"))
    assert (await penstock.reload(pools=pools))[0] == 200
    answer = await ask(penstock, "/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert answer.status == 200
    await penstock.until(lambda all_: all_[0]["models"] == ["sim-model"], 5)  # told to who has it


async def test_concurrent_reloads_run_one_by_one(simulate: Simulate, serve: Serve) -> None:
    """Whoever asks while one runs is answered by the next, which reads the file anew."""
    a, b = await simulate(2)
    penstock = await serve([a])
    penstock.configure(pools=pool(a, b))
    answers = await asyncio.gather(*(penstock.reload() for _ in range(20)))
    assert [status for status, _ in answers] == [200] * 20
    assert [change["added"] for _, change in answers].count(["b1"]) >= 1
    for _ in range(20):
        penstock.process.send_signal(signal.SIGHUP)
    await penstock.until_ready(2)
    await asyncio.sleep(0.3)
    reloaded = sum(b"proxy.reload.reload reloaded" in line for line in penstock.log)
    assert 2 <= reloaded <= 40
    assert (await penstock.reload())[1]["kept"] == 2


async def test_a_draining_proxy_does_not_reload(simulate: Simulate, serve: Serve) -> None:
    a, b = await simulate(2, profile="steady-50")
    penstock = await serve([a], drain={"grace_s": 0, "timeout_s": 10})
    async with stream(penstock, max_tokens=60) as answer:
        penstock.process.send_signal(signal.SIGTERM)
        await until_logged(penstock, b"draining grace_s")
        status, said = await penstock.reload(pools=pool(b))
        assert (status, said["error"]["code"]) == (503, "draining")
        penstock.process.send_signal(signal.SIGHUP)
        await until_logged(penstock, b"not reloaded, the proxy is shutting down", 2)
        assert (await answer.read()).endswith(DONE)
    assert await asyncio.wait_for(penstock.process.wait(), 5) == 0


async def test_warnings_are_logged_once(fleet: Fleet) -> None:
    _, penstock = await fleet(health={"timeout_s": 3})
    penstock.config.chmod(0o644)
    assert (await penstock.reload())[0] == 200
    assert (await penstock.reload(admin={"port": 0, "token": "brief"}))[0] == 200
    assert await penstock.stop() == 0
    told = [line.decode() for line in penstock.log if b"configuration: " in line]
    assert ["health.timeout_s: 3 s is above" in line for line in told] == [True, False, False]
    assert all(" WARNING " in line for line in told)
    assert "admin.token: is a key of fewer than 16 characters" in told[1]
    assert "admin.token: stands in a file that everybody on this machine may read" in told[2]
    assert "brief" not in "".join(told)
