"""The peers benchmark, short, with the peers that need no installation."""

import os
import signal
from pathlib import Path

import orjson
import pytest

from penstock.bench.cli import run
from penstock.bench.peers.fleet import Fleet
from penstock.bench.processes import NotStarted

pytestmark = pytest.mark.once


def test_every_answer_is_whole_and_what_cannot_run_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no HAProxy here, unless Debian keeps one
    out = tmp_path / "out.json"
    options = ["--peers", "penstock,penstock:round_robin,haproxy", "--workloads", "skewed"]
    sizes = ["--servers", "2", "--seconds", "2", "--speedup", "10", "--load", "0.4"]
    assert run("peers", *options, *sizes, "--virtual", "--json", str(out)) == 0
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


def test_a_fleet_that_died_is_told() -> None:
    with Fleet(1, "instant", 1.0) as fleet:
        assert fleet.work()[0].prompt_tokens_total == 0
        os.kill(fleet.pid, signal.SIGKILL)
        os.waitid(os.P_PID, fleet.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(NotStarted, match="a simulated server is gone"):
            fleet.work()
