"""The benches, short: their counts hold here, their times elsewhere."""

import asyncio
import os
import signal
import statistics
from pathlib import Path

import orjson
import pytest

from penstock.bench.cli import main, run
from penstock.bench.overload.calls import Call
from penstock.bench.overload.http import Player
from penstock.bench.peers.fleet import Fleet
from penstock.bench.processes import NotStarted
from penstock.bench.reliability import aborts, scrapes, slow, stalls
from penstock.bench.reliability.proxy_process import ProxyProcess
from penstock.bench.sim.server import SimServer
from tests.e2e.process import Serve, Simulate

PROFILE = "8b-1xa100"


def calls(count: int, patience_s: float = 5.0, retries: int = 2) -> list[Call]:
    return [
        Call(0.02 * number, 6_000, 8, number % 2, patience_s=patience_s, retries=retries)
        for number in range(count)
    ]


async def test_overload_clients_time_their_answers(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate(1, profile=PROFILE))
    log = await Player(penstock.port, 1.0, 1).play(calls(4))
    assert all(call.attempts == call.sent == 1 and not call.late for call in log.calls)
    assert log.calls[-1].good  # no prompt comes between its tokens
    assert all(0.1 < call.ttft_s < 4.0 for call in log.calls)
    assert sum(tokens for _, tokens in log.tokens) == 4 * (6_000 + 8)


async def test_refused_overload_clients_come_back(simulate: Simulate, serve: Serve) -> None:
    classes = [{"name": "standard", "max_wait_s": 1.5}]
    admission = {"enabled": True, "classes": classes}
    penstock = await serve(await simulate(1, profile=PROFILE), admission=admission)
    log = await Player(penstock.port, 1.0, 1).play(calls(12))
    refused = [call for call in log.calls if call.refused]
    assert refused
    assert len(log.refusals) == sum(call.refused for call in refused)
    assert all(call.attempts == call.refused + call.sent for call in refused)
    assert any(call.good for call in refused)


@pytest.mark.once
def test_the_overload_table_in_virtual_time(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["overload", "--mix", "uniform", "--load", "2", "--length-s", "8", "--jobs", "1"]
    assert main(arguments) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| 2 ")]
    assert [row.split()[2] for row in rows] == ["at_once", "admission"]


@pytest.mark.once
def test_peers_answer_whole_or_say_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no HAProxy here, unless Debian keeps one
    out = tmp_path / "out.json"
    options = ["--peers", "penstock,penstock:round_robin,haproxy", "--workloads", "skewed"]
    sizes = ["--servers", "2", "--seconds", "2", "--speedup", "10", "--load", "0.4"]
    assert run("peers", *options, *sizes, "--json", str(out)) == 0
    said = capsys.readouterr().out
    assert "| penstock token_cost |" in said
    assert "| HAProxy leastconn |" in said
    cells = orjson.loads(out.read_bytes())["cells"]
    ours = [each for each in cells if each["peer"] == "penstock"]
    assert [each["faults"] for each in ours] == [{}, {}]
    for each in ours:
        assert each["requests"] > 20
        assert each["ttft_mean_s"] > 0.0
        assert sum(each["shares"]) == pytest.approx(1.0)


@pytest.mark.once
def test_a_dead_fleet_is_reported() -> None:
    with Fleet(1, "instant", 1.0) as fleet:
        assert fleet.work()[0]["prompt_tokens_total"] == 0
        os.kill(fleet.pid, signal.SIGKILL)
        os.waitid(os.P_PID, fleet.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(NotStarted, match="a simulated server is gone"):
            fleet.work()


@pytest.mark.parametrize("name", ["queued", "connect", "plain"])
async def test_leaving_clients_are_counted(name: str) -> None:
    """Those of streams: `test_clients_leaving.py`."""
    phase = await aborts.measure(name, 50)
    assert phase.faults == []
    assert len(phase.times_s) == 50
    assert phase.counted == 50 or name == "queued"  # some may come before there is a queue
    print(f"{name}: median {statistics.median(phase.times_s) * 1e3:.1f} ms")


@pytest.mark.alone
async def test_slow_senders_are_closed_in_time() -> None:
    server = await SimServer("sim", "instant").start()
    timeouts = {"client_head_s": 1.0, "client_body_s": 2.0}
    async with ProxyProcess([server.url], timeouts=timeouts) as proxy:
        others = asyncio.Event()
        window = asyncio.create_task(slow.Others(proxy).window(others))
        lives = await slow.attack(slow.Attack(proxy.port, 150, 150, 1.0, 2.0, drip_s=0.2))
        others.set()
        assert len(await window) > 30
        # The process is no fatter for it, and nobody is left inside.
        assert (await proxy.held()).descriptors < 100
    await server.stop()
    assert lives.never == 0
    assert lives.statuses == {"408": 300}
    assert 0.9 < min(lives.heads_s) <= max(lives.heads_s) < 1.0 + slow.CLOSING_S
    assert 1.9 < min(lives.bodies_s) <= max(lives.bodies_s) < 2.0 + slow.CLOSING_S


async def test_stalled_readers_take_bounded_memory() -> None:
    figures = await slow.stall(40, 4.0)
    assert slow.report_stalled(figures) == []
    # It did hold something for them. Some of it lies in pages that were in use before.
    assert figures.each_bytes > 50 * slow.KIB


async def test_stalls_are_measured() -> None:
    shapes = ["options", stalls.CHUNKS]
    rows = [row async for row in stalls.measure(shapes, 1, (1,))]
    assert [name for name, _ in rows] == ["(no body)", *shapes]
    assert all(stall.own_ms > 0 and stall.beside_ms > 0 for _, (stall,) in rows)


async def test_scrapes_are_measured() -> None:
    longest_ms = await scrapes.measure(2, backends=20, requests=40)
    assert len(longest_ms[scrapes.RENDERED]) == 2
    assert len(longest_ms[scrapes.NONE]) == sum(map(len, longest_ms.values())) / 2
    # The stream flows: an event each 5 ms, and none is missed for long.
    assert all(4.0 < gap_ms < 500.0 for gaps_ms in longest_ms.values() for gap_ms in gaps_ms)
