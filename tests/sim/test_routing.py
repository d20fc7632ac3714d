"""The routing experiments: reproducible, whole, and with the shape that is known of policies."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import orjson
import pytest

from penstock.bench.baselines import BASELINES
from penstock.bench.cli import run
from penstock.bench.routing.cell import Cell, compute, maker
from penstock.bench.routing.cli import draw
from penstock.bench.routing.experiment import CALM, Adversity, Experiment
from penstock.bench.routing.generators import LEAD_S, agentic, shared_prefix, uniform
from penstock.bench.routing.outcome import half_width, imbalance, jain, quantile
from penstock.bench.routing.trace import Arrival, fitting, speedup
from penstock.bench.sim.profiles import GPUS

GPU = GPUS["8b-1xh100"]


def played(
    policy: str,
    arrivals: Sequence[Arrival],
    load: float,
    routers: int = 1,
    share_s: float = 0.0,
    adversity: Adversity = CALM,
) -> dict[str, float]:
    faster = speedup(arrivals, GPU, 4, load)
    arrivals = [each._replace(at_s=each.at_s / faster) for each in arrivals]
    experiment = Experiment(
        maker(policy),
        GPU,
        backends=4,
        routers=routers,
        share_s=share_s,
        seed=1,
        adversity=adversity,
    )
    return experiment.run(arrivals).figures()


def test_the_same_seed_gives_the_same_figures() -> None:
    arrivals = uniform(60.0, Random(1))
    assert played("least_tokens", arrivals, 0.8) == played("least_tokens", arrivals, 0.8)


def test_every_lease_is_given_back() -> None:
    experiment = Experiment(maker("least_tokens"), GPU, backends=4, routers=3, seed=1)
    arrivals = uniform(60.0, Random(1))
    assert len(experiment.run(arrivals).e2e_s) == len(arrivals)
    assert all(backend.own.idle for backend in experiment.known)


def test_tokens_beat_requests_and_requests_beat_turns() -> None:
    """Prompts of very different size: what each policy knows of the load shows in the TTFT."""
    rng = Random(2)
    arrivals = [
        Arrival(each.at_s, 20_000 if rng.random() < 0.1 else 500, 100)
        for each in uniform(300.0, Random(1))
    ]
    turns, requests, tokens = (
        played(policy, arrivals, 0.8)["ttft_mean_s"]
        for policy in ("round_robin", "least_requests", "least_tokens")
    )
    assert tokens < 0.8 * requests
    assert requests < turns


def test_sessions_find_their_prefix() -> None:
    arrivals = shared_prefix(200.0, Random(1))
    sticky, spread = played("session", arrivals, 0.8), played("least_tokens", arrivals, 0.8)
    assert sticky["hit_rate"] > spread["hit_rate"] + 0.1


def test_routers_that_do_not_share_a_view_choose_worse() -> None:
    arrivals = uniform(200.0, Random(1))
    alone, many = (played("least_tokens", arrivals, 0.9, routers) for routers in (1, 8))
    assert alone["ttft_mean_s"] < many["ttft_mean_s"]


def test_routers_that_report_their_loads_choose_better() -> None:
    arrivals = uniform(120.0, Random(1))
    apart, together = (played("least_tokens", arrivals, 0.9, 8, each) for each in (0.0, 0.05))
    assert together["ttft_mean_s"] < 0.9 * apart["ttft_mean_s"]


def test_one_router_has_nobody_to_report_to() -> None:
    arrivals = uniform(60.0, Random(1))
    alone, shares = (played("token_cost", arrivals, 0.9, 1, each) for each in (0.0, 0.05))
    assert alone == shares


def test_reports_and_scrapes_end_with_the_answers() -> None:
    arrivals = uniform(30.0, Random(1))
    figures = played("token_cost", arrivals, 0.8, 3, 0.1, Adversity(hidden=0.3))
    assert figures["goodput"] > 0.5


@pytest.mark.parametrize("rule", BASELINES)
def test_rules_of_others_play_to_the_end(rule: str) -> None:
    figures = played(rule, shared_prefix(60.0, Random(1)), 0.8, routers=2)
    assert figures == played(rule, shared_prefix(60.0, Random(1)), 0.8, routers=2)
    assert figures["goodput"] > 0.5


def test_figures_of_balance() -> None:
    assert (imbalance([1, 1, 2]), jain([1, 1]), jain([1, 0])) == (1.5, 1.0, 0.5)
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([], 0.5) == 0.0
    hundred = [float(value) for value in range(100, 0, -1)]
    assert [quantile(hundred, each) for each in (0.01, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
    assert quantile([7.0], 0.01) == 7.0


def test_a_finished_cell_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cell = Cell("uniform", "random", 0.5, 1, 1, 2, "8b-1xh100", 20.0)
    figures = compute(cell)
    kept = orjson.loads(cell.file.read_bytes())
    assert kept == figures
    cell.file.write_bytes(orjson.dumps(kept | {"goodput": 0.25}))
    assert compute(cell)["goodput"] == 0.25
    assert not replace(cell, seed=2).file.exists()
    argv = "--trace uniform --policies random --load 0.5 --seeds 1 --backends 2"
    argv += f" --profile 8b-1xh100 --window-s 20 --jobs 1 --json {tmp_path / 'out.json'}"
    assert run("routing", *argv.split()) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"$ penstock bench routing {argv}\n")
    assert "| random |" in said
    (row,) = orjson.loads((tmp_path / "out.json").read_bytes())["cells"]
    assert row["goodput"] == 0.25
    assert {"trace", "policy", "load", "seed", "routers", "ttft_p50_s", "jain"} <= row.keys()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--trace", "none"], "uniform, shared_prefix, agentic"),
        (["--trace", "uniform", "--policies", "best"], "no policy 'best'"),
        (["--trace", "uniform", "--load", "0"], "above 0"),
        (["--trace", "uniform", "--load", "x"], "above 0"),
        (["--trace", "uniform", "--backends", "0"], "whole number"),
        (["--trace", "uniform", "--window-s", "0.1"], "at least 10 s"),
    ],
)
def test_what_is_wrong_is_told(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("routing", *argv)
    assert said in capsys.readouterr().err


def test_the_figure_is_the_same_for_the_same_cells(tmp_path: Path) -> None:
    cells = {
        Cell("uniform", policy, load, seed, 1, 4, GPU.name, 60.0): {
            "ttft_mean_s": load * seed,
            "goodput": 1.0,
        }
        for policy in ("least_tokens", "lmetric")
        for load in (0.5, 0.8)
        for seed in (1, 2)
    }
    for name in ("one.svg", "two.svg"):
        draw(cells, {"uniform": "uniform"}, tmp_path / name)
    drawn = (tmp_path / "one.svg").read_text()
    assert drawn == (tmp_path / "two.svg").read_text()
    assert "<path" in drawn


@pytest.mark.parametrize(
    ("values", "half"), [([3.0], 0.0), ([1.0, 3.0], 12.706), ([1.0] * 30, 0.0)]
)
def test_the_interval_is_students(values: list[float], half: float) -> None:
    assert half_width(values) == pytest.approx(half, rel=1e-3)


def test_what_no_context_holds_is_left_out() -> None:
    fits, over = Arrival(0.0, 131_000, 72), Arrival(0.0, 131_000, 73)
    assert fitting([fits, over], GPU) == [fits]


@pytest.mark.parametrize("seed", range(1, 6))
def test_agents_use_their_prompts_again_and_never_outgrow_a_context(seed: int) -> None:
    arrivals = agentic(LEAD_S + 360.0, Random(seed))
    assert max(each.prompt_tokens + each.output_tokens for each in arrivals) < 131_072
    seen: set[int] = set()
    again = []
    for each in arrivals:
        full = each.prefix[: each.prompt_tokens // 512]
        cached = 512 * sum(block in seen for block in full)
        again.append(each.at_s > LEAD_S and cached >= 0.9 * each.prompt_tokens)
        seen.update(each.prefix)
    late = sum(each.at_s > LEAD_S for each in arrivals)
    assert 0.95 <= sum(again) / late <= 0.98
