"""The panel's baseline: what is kept of runs, and which differences are noise."""

from pathlib import Path

from penstock.bench.overload.panel import FILE, SCENES, Row, read, write
from penstock.bench.overload.scenes import RULES


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
