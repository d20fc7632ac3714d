"""The panel: its cells, its table beside a baseline, and which differences are noise."""

from pathlib import Path

import orjson
import pytest

from penstock.bench.cli import main
from penstock.bench.overload import panel
from penstock.bench.overload.calls import Clients, Open
from penstock.bench.overload.mixes import H100
from penstock.bench.overload.panel import FILE, SCENES, Row, read, write
from penstock.bench.overload.scenes import CHATS, HIGH, ORDINARY, PRESSED, RULES, Scene
from penstock.bench.overload.world import Site
from penstock.bench.report import BenchError

ONE = Site((H100,))
CALM = Scene("calm", (Open(CHATS, 0.1),), ONE, 2.0, 8.0, 10.0)
CLASSES = Scene(
    "classes", (Open(CHATS, 0.5, Clients()),), ONE, 2.0, 8.0, 10.0, pressed=True, victim=HIGH
)


def test_every_cell_has_a_name_of_its_own() -> None:
    assert len(panel.SCENES) == len(ORDINARY) + len(PRESSED)
    assert all(scene.warm_s < scene.length_s for scene in panel.SCENES.values())
    assert {scene.pressed for scene in ORDINARY} == {False}
    assert {scene.pressed for scene in PRESSED} == {True}


def test_a_calm_cell_is_the_same_under_all_rules() -> None:
    found = [CALM.figures(rule, 1) for rule in ("at_once", "admission", "least_requests")]
    assert all(each["refused"] == each["idle"] == each["unanswered"] == 0.0 for each in found)
    assert found[0] == CALM.figures("at_once", 1)
    assert found[1] == pytest.approx(found[0], rel=0.001)
    assert 0.0 < found[0]["ttft_mean_s"] < found[0]["ttft_p99_s"] < 0.2


def test_a_victim_is_played_with_the_others_and_alone() -> None:
    beside, at_once = (CLASSES.figures(rule, 1) for rule in ("admission", "at_once"))
    assert beside["alone_ttft_p99_s"] <= beside["victim_ttft_p99_s"] < at_once["victim_ttft_p99_s"]
    assert beside["victim_ttft_p99_s"] == beside["high_ttft_p99_s"]


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel, "ORDINARY", (CALM,))
    monkeypatch.setitem(panel.HALVES, "ordinary", (CALM,))
    monkeypatch.setitem(panel.SCENES, "calm", CALM)


@pytest.mark.usefixtures("calm")
def test_the_table_beside_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "baseline.json", tmp_path / "out.json"
    command = ["overload", "--panel", "ordinary", "--rules", "at_once", "--seeds", "2"]
    command += ["--jobs", "1", "--baseline", str(file)]
    assert main([*command, "--write-baseline", "--json", str(out)]) == 0
    first = capsys.readouterr().out
    assert "| calm at_once | 0.0" in first
    assert "(" not in first.splitlines()[-1]
    assert [cell["seed"] for cell in orjson.loads(out.read_bytes())["cells"]] == [1, 2]
    assert main(command) == 0
    second = capsys.readouterr().out.splitlines()[-1]
    assert second.count("(") == len(panel.OF_ORDINARY)
    assert "**" not in second


def test_what_is_more_than_noise_is_bold() -> None:
    before = Row.of([{"good": 1.0}, {"good": 1.001}])
    assert panel._beside("good", Row.of([{"good": 2.0}]), before) == "**2 (1)**"
    assert panel._beside("good", Row.of([{"good": 1.0}]), before) == "1 (1)"
    assert panel._beside("good", Row.of([{"other": 1.0}]), before) == ""


@pytest.mark.usefixtures("calm")
def test_what_cannot_be_computed_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(self: Scene, rule: str, seed: int) -> dict[str, float]:
        raise BenchError("no trace")

    monkeypatch.setattr(Scene, "figures", fails)
    file = tmp_path / "baseline.json"
    command = ["overload", "--panel", "ordinary", "--jobs", "1", "--baseline", str(file)]
    assert main(command) == 0
    said = capsys.readouterr()
    assert "| calm" not in said.out
    assert read(file) == {}


def test_degrading_is_no_rule_of_the_panel() -> None:
    with pytest.raises(SystemExit):
        main(["overload", "--panel", "both", "--rules", "degrade"])


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    one = Row.of([{"good": 1.0, "late": 0.5}, {"good": 2.0}])
    assert one.figures["late"] == (0.5, 0.0)
    write(path, {("calm", "at_once"): one})
    assert read(path)["calm", "at_once"].figures["good"] == (1.5, 6.353)


def test_other_cells_and_rules_stay(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    assert read(path) == {}
    write(path, {("calm", "at_once"): Row.of([{"good": 1.0}])})
    write(path, {("calm", "admission"): Row.of([{"good": 2.0}])})
    write(path, {("calm", "at_once"): Row.of([{"good": 3.0}])})
    means = {of: row.figures["good"][0] for of, row in read(path).items()}
    assert means == {("calm", "at_once"): 3.0, ("calm", "admission"): 2.0}


def test_what_seeds_differ_by_is_noise() -> None:
    row = Row.of([{"good": each} for each in (9.0, 10.0, 11.0)])
    assert row.figures["good"][1] == 4.303 / 3.0**0.5
    assert row.is_noise("good", 12.4, 3)
    assert not row.is_noise("good", 14.0, 3)
    assert row.is_noise("good", 14.0, 1)  # one run alone has more


def test_one_seed_tells_no_noise() -> None:
    assert Row.of([{"good": 1.0}]).is_noise("good", 100.0, 5)


def test_what_all_seeds_agree_on_has_none() -> None:
    row = Row.of([{"refused": 0.0}] * 2)
    assert row.is_noise("refused", 0.000_05, 1)
    assert not row.is_noise("refused", 0.001, 1)


def test_the_one_in_the_repository_is_of_cells_and_rules_that_there_are() -> None:
    rows = read(FILE)
    assert rows
    assert {cell for cell, _ in rows} <= set(SCENES)
    assert {rule for _, rule in rows} <= set(RULES)
