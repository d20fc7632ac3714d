"""When a waiting request will have its first token, and what true waits teach."""

import pytest

from penstock.balancing.admission.pace import Pace
from penstock.balancing.admission.prediction import FACTOR_MAX, LEAST_S, learn, predict
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.ask import Ask


def ticket(flow: Flow, tokens: int = 1_000, rank: int = 0) -> Ticket:
    made = Ticket(Ask("/"), 0.0, lambda _: None, rank=rank)
    made.flow, made.tokens = flow, tokens
    return made


def predicted(each: Ticket, ahead: float = 20_000.0) -> float:
    """Behind so many tokens, on two engines of 10,000 tokens a second of which nothing is known."""
    return predict(each, ahead, 4_000, 0.0, [10_000.0, 10_000.0], Pace(2))


def taught(flow: Flow, count: int, factor: float, tokens: int = 1_000) -> None:
    """So many waits were so much longer than the work would take."""
    for _ in range(count):
        each = ticket(flow, tokens)
        predicted(each)
        learn(each, factor * each.raw_s)


def flow_of() -> Flow:
    return Flow("f", 2)


def test_before_anything_is_learnt_it_is_the_work_at_the_measured_speed() -> None:
    each = ticket(flow_of())
    assert predicted(each) == pytest.approx(20_000 / 20_000 + 4_000 / 20_000 + 0.1)
    assert each.predicted_s == each.raw_s


def test_what_is_ahead_goes_at_the_pace_that_higher_classes_leave() -> None:
    pace = Pace(2)
    pace.busy = True
    for step in range(1, 601):
        pace.count(1_500, 0, step / 10)
        pace.count(500, 1, step / 10)
    upper = predict(ticket(flow_of(), 1, 0), 20_000.0, 0, 0.0, [20_000.0], pace)
    lower = predict(ticket(flow_of(), 1, 1), 20_000.0, 0, 0.0, [20_000.0], pace)
    assert 3.0 < lower / upper < 4.5  # the measured speeds still count for a little


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_it_comes_near_the_true_waits(factor: float) -> None:
    flow = flow_of()
    taught(flow, 60, factor)
    assert predicted(ticket(flow)) == pytest.approx(factor * 1.3, 0.04)


@pytest.mark.parametrize(("times", "factor"), [(1e6, FACTOR_MAX), (0.0, 1 / FACTOR_MAX)])
def test_no_waits_correct_it_by_more_than_a_bound(times: float, factor: float) -> None:
    flow = flow_of()
    taught(flow, 1_000, times)
    assert predicted(ticket(flow)) == pytest.approx(factor * 1.3)


def test_a_wait_changes_little_however_long_it_was() -> None:
    flow = flow_of()
    taught(flow, 1, 1e9)
    assert 1.3 < predicted(ticket(flow)) < 1.04 * 1.3


def test_prompts_of_another_size_are_corrected_apart() -> None:
    flow = flow_of()
    taught(flow, 60, 2.0, 200)
    for tokens in (256, 1_000, 4_000, 16_000, 100_000):
        other = ticket(flow, tokens)
        assert predicted(other) == other.raw_s
    same = ticket(flow, 255)
    assert predicted(same) > 1.9 * same.raw_s


def test_what_one_flow_waits_changes_nothing_for_another() -> None:
    greedy, other = flow_of(), flow_of()
    before = predicted(ticket(other))
    taught(greedy, 100, 100.0)
    assert predicted(ticket(other)) == before


def test_a_request_that_did_not_wait_teaches_nothing() -> None:
    flow = flow_of()
    learn(ticket(flow), 100.0)
    assert predicted(ticket(flow)) == pytest.approx(1.3)


def test_times_that_are_as_good_as_none_are_no_news() -> None:
    """Predicted 1 ms, waited 50 ms: nobody is wrong by a factor of fifty."""
    flow = flow_of()
    for _ in range(100):
        each = ticket(flow, 1)
        predict(each, 0.0, 0, 0.0, [1_000.0], Pace(1))
        learn(each, LEAST_S)
    assert predict(each, 0.0, 0, 0.0, [1_000.0], Pace(1)) <= 1.04 * each.raw_s


def test_a_full_cache_is_waited_for_as_long_as_what_is_ahead_at_least() -> None:
    pace = Pace(1)
    alone = predict(ticket(flow_of(), 1), 0.0, 0, 0.0, [20_000.0], pace)
    full = predict(ticket(flow_of(), 1), 0.0, 0, 5.0, [20_000.0], pace)
    assert full == pytest.approx(alone + 5.0)
    both = predict(ticket(flow_of(), 1), 200_000.0, 0, 5.0, [20_000.0], pace)
    assert both == pytest.approx(alone + 10.0)
