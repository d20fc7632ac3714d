"""The pace at which prompts get their first tokens, while others wait."""

import pytest

from penstock.balancing.admission.pace import PRIOR_S, TAU_S, Pace


def paced(seconds: float, *per_s: int) -> Pace:
    """While requests waited, so many tokens a second of each class, in steps of 0.1 s."""
    pace = Pace(len(per_s))
    pace.busy = True
    for step in range(1, round(10 * seconds) + 1):
        for rank, tokens in enumerate(per_s):
            pace.count(tokens // 10, rank, step / 10)
    return pace


def test_before_anything_is_known_it_is_the_measured_speed() -> None:
    assert Pace(2).per_s(40_000.0) == 40_000.0
    assert Pace(2).per_s(40_000.0, above=1) == 40_000.0


def test_in_the_end_it_is_what_is_served() -> None:
    assert paced(60.0, 20_000, 0).per_s(0.0) == pytest.approx(
        20_000 * TAU_S / (TAU_S + PRIOR_S), 0.02
    )


def test_the_classes_above_are_left_out() -> None:
    pace = paced(60.0, 20_000, 5_000, 1_000)
    whole = pace.per_s(0.0)
    assert pace.per_s(0.0, above=1) == pytest.approx(whole * 6 / 26)
    assert pace.per_s(0.0, above=2) == pytest.approx(whole * 1 / 26)


def test_old_tokens_fade_while_requests_wait() -> None:
    pace = paced(60.0, 20_000)
    before, now_s = pace.per_s(0.0), 60.0
    for _ in range(round(10 * TAU_S)):
        now_s += 0.1
        pace.look(now_s)
    assert pace.per_s(0.0) == pytest.approx(before / 2.718, 0.02)
    for _ in range(200 * round(TAU_S)):
        now_s += 0.1
        pace.look(now_s)
    assert pace.per_s(0.0) < 1.0


def test_a_time_in_which_the_process_did_not_run_fades_next_to_nothing() -> None:
    pace = paced(60.0, 20_000)
    before = pace.per_s(0.0)
    pace.look(60.0 + 1_000.0)
    assert pace.per_s(0.0) > 0.9 * before


def test_time_in_which_nothing_waits_changes_nothing() -> None:
    pace = paced(60.0, 20_000)
    before = pace.per_s(0.0)
    pace.look(60.0)
    pace.busy = False
    pace.count(10**9, 0, 1_000.0)
    pace.look(2_000.0)
    pace.busy = True
    assert pace.per_s(0.0) == before
    pace.look(2_000.1)
    assert pace.per_s(0.0) == pytest.approx(before, 0.05)


def test_a_clock_that_goes_back_makes_nothing_grow() -> None:
    pace = paced(10.0, 20_000)
    before = pace.per_s(0.0)
    pace.look(5.0)
    assert pace.per_s(0.0) == before
