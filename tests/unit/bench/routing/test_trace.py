"""Workloads of the routing experiments: what is read of traces, what is made up, and their load."""

import gzip
from pathlib import Path
from random import Random

import orjson
import pytest

from penstock.bench.cli import run
from penstock.bench.routing.cell import recorded
from penstock.bench.routing.generators import GENERATORS, agentic
from penstock.bench.routing.trace import (
    BLOCK_TOKENS,
    Arrival,
    UnknownFormat,
    engine_s,
    read,
    speedup,
    window,
)
from penstock.bench.sim.profiles import GPUS

GPU = GPUS["70b-4xh100"]


def mooncake(path: Path, stamps: list[int], hash_ids: list[list[int]]) -> Path:
    rows = [
        {"timestamp": stamp, "input_length": 1_100, "output_length": 7, "hash_ids": ids}
        for stamp, ids in zip(stamps, hash_ids, strict=True)
    ]
    with gzip.open(path, "wb") as file:
        file.write(b"\n".join(map(orjson.dumps, rows)))
    return path


def test_mooncakes_prefix_is_of_full_blocks(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "x.jsonl.gz", [500, 0], [[1, 2, 3], [1, 4, 5]])
    later, first = read(path, Random(1))[::-1]
    assert first[:4] == (0.0, 1_100, 7, (1, 4))
    assert later[:4] == (0.5, 1_100, 7, (1, 2))


def test_stamps_on_a_grid_are_spread_over_it_by_the_seed(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "x.jsonl.gz", [0] * 50 + [3_000] * 50, [[1]] * 100)
    times = [each.at_s for each in read(path, Random(1))]
    assert all(0.0 <= at_s < 3.0 for at_s in times[:50])
    assert all(3.0 <= at_s < 6.0 for at_s in times[50:])
    assert max(times[:50]) - min(times[:50]) > 2.0
    assert times == [each.at_s for each in read(path, Random(1))]
    assert times != [each.at_s for each in read(path, Random(2))]


def test_a_block_that_all_begin_with_is_no_conversation(tmp_path: Path) -> None:
    ids = [[0, number // 2] for number in range(2, 102)]
    sessions = [
        each.session for each in read(mooncake(tmp_path / "x.gz", [*range(100)], ids), Random(1))
    ]
    assert sessions == [str(number // 2) for number in range(2, 102)]


def test_azures_rows_have_lengths_and_times(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    first, second = read(path, Random(1))
    assert first == Arrival(0.0, 374, 44)
    assert second.at_s == pytest.approx(4.314579)
    assert second[1:3] == (396, 109)


def test_an_unknown_file_is_told_with_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UnknownFormat, match="Mooncake"):
        read(path, Random(1))


def test_a_window_begins_where_the_seed_says() -> None:
    arrivals = [Arrival(float(i), 10, 10) for i in range(100)]
    cut = window(arrivals, 20.0, Random(3))
    assert len(cut) == 20
    assert 0.0 <= cut[0].at_s < 1.0
    assert window(arrivals, 500.0, Random(3)) == arrivals


def test_load_one_fills_the_engines_exactly() -> None:
    """1,000 prompts of 1,000 tokens and 100 out; by hand: 66.8 ms of linear layers and 0.82 ms of
    attention, and 100 x (66.8 us + 1,050 x 31 ns + 5 us).
    """
    arrivals = [Arrival(i / 10, 1_000, 100) for i in range(1, 1_001)]
    each_s = 0.0668 + 0.00082 + 100 * (66.8e-6 + 1_050 * 31e-9 + 5e-6)
    assert engine_s(arrivals[0], GPU) == pytest.approx(each_s)
    faster = speedup(arrivals, GPU, 4, 1.0)
    assert 100.0 / faster * 4 == pytest.approx(1_000 * each_s)
    assert speedup(arrivals, GPU, 4, 0.5) == pytest.approx(faster / 2)


@pytest.mark.parametrize("name", GENERATORS)
def test_what_is_made_up_is_the_seeds(name: str) -> None:
    make = GENERATORS[name]
    arrivals = make(120.0, Random(1))
    assert arrivals == make(120.0, Random(1)) != make(120.0, Random(2))
    assert arrivals == sorted(arrivals)
    assert all(0 <= each.at_s < 120.0 for each in arrivals)


def test_agents_use_nine_tenths_of_their_prompts_again() -> None:
    seen: dict[str | None, Arrival] = {}
    shares = []
    arrivals = agentic(600.0, Random(1))
    for each in arrivals:
        before = seen.get(each.session)
        if before is not None:
            assert each.prefix[: len(before.prefix)] == before.prefix
            shares.append(len(before.prefix) * BLOCK_TOKENS / each.prompt_tokens)
        seen[each.session] = each
    assert sum(share >= 0.9 for share in shares) > 0.95 * len(shares)
    assert len(shares) > 0.9 * len(arrivals)


def servegen(path: Path, rate: float, dataset: bool = True) -> Path:
    client = {
        "client": "chunk-1",
        "window_start_s": 0,
        "trace_rows": [f"{start},{rate},1.0,Gamma,1.0,{1 / rate}\r" for start in (0, 600)],
        "dataset": {"input_tokens": "{50: 0.25, 60: 0.75}", "output_tokens": "{0: 1.0}"},
    }
    silent = client | {"trace_rows": ["0,0,0,,0,0", "600,0,0,,0,0"]}
    unpublished = client | {"client": "chunk-2", "dataset": None}
    lines = [client if dataset else unpublished, silent, unpublished]
    path.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    return path


def test_servegens_clients_are_sampled_by_their_rates_and_lengths(tmp_path: Path) -> None:
    path = servegen(tmp_path / "s.jsonl", 10.0)
    arrivals = recorded(path, 360.0, Random(1))
    assert arrivals == recorded(path, 360.0, Random(1)) != recorded(path, 360.0, Random(2))
    assert len(arrivals) == pytest.approx(3_600, rel=0.1)
    assert sum(each.prompt_tokens == 60 for each in arrivals) / len(arrivals) == pytest.approx(
        0.75, abs=0.05
    )
    assert {(each.output_tokens, each.tenant) for each in arrivals} == {(1, "chunk-1")}
    assert arrivals == sorted(arrivals)


def test_a_file_without_lengths_is_told(tmp_path: Path) -> None:
    path = servegen(tmp_path / "s.jsonl", 10.0, dataset=False)
    path.write_bytes(path.read_bytes().splitlines()[0])
    with pytest.raises(UnknownFormat, match="lengths"):
        recorded(path, 360.0, Random(1))


def test_a_busy_model_is_cut_to_a_shorter_window(tmp_path: Path) -> None:
    arrivals = recorded(servegen(tmp_path / "s.jsonl", 1_000.0), 360.0, Random(1))
    assert len(arrivals) == pytest.approx(5_000, rel=0.1)
    assert arrivals[-1].at_s < 5.0


@pytest.mark.parametrize(
    "text",
    ["TIMESTAMP,ContextTokens,GeneratedTokens\n", '{"timestamp":0}\n', '{"client":1}\n', "{"],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(UnknownFormat):
        recorded(path, 360.0, Random(1))


def test_a_trace_that_begins_later_begins_at_zero(tmp_path: Path) -> None:
    later = [9_000_000 + stamp for stamp in (0, 3_000, 600_000)]
    arrivals = read(mooncake(tmp_path / "x.gz", later, [[1]] * 3), Random(1))
    assert arrivals == read(mooncake(tmp_path / "y.gz", [0, 3_000, 600_000], [[1]] * 3), Random(1))
    assert 0.0 <= arrivals[0].at_s < 3.0


def test_a_window_that_falls_into_a_pause_begins_with_a_request() -> None:
    arrivals = [Arrival(0.0, 10, 10), Arrival(1.0, 10, 10), Arrival(100_000.0, 10, 10)]
    for seed in range(20):
        assert window(arrivals, 20.0, Random(seed))


@pytest.mark.parametrize(
    ("stamps", "prompt_tokens"), [([7_000], 100), ([7_000, 7_000], 100), ([0, 1_000], 10**7)]
)
def test_a_window_of_too_few_requests_is_told(
    tmp_path: Path, stamps: list[int], prompt_tokens: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One request, all at one time, or none that fits: no time passes, so there is no load."""
    row = {"input_length": prompt_tokens, "output_length": 7, "hash_ids": []}
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(row | {"timestamp": stamp}) for stamp in stamps))
    assert run("routing", "--trace", str(path), "--policies", "random", "--seeds", "1") == 1
    assert "x.jsonl: too few requests in 360 s at seed 1" in capsys.readouterr().err
