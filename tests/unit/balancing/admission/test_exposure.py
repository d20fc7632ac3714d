"""How far the answers of one flow may outgrow what was expected, and that others find room then."""

import pytest

from penstock.balancing.admission.exposure import (
    EARNED_TAU_S,
    TOKENS,
    Exposure,
    most_tokens,
)
from penstock.balancing.admission.spread import KEPT_MIN
from penstock.balancing.admission.ticket import Flow
from penstock.balancing.ask import Ask

CAPACITY = 40_000


def taken(exposure: Exposure, flow: Flow, tokens: float, now_s: float = 0.0) -> int:
    """How many such answers it gets at once."""
    for number in range(1_000):
        if not exposure.allows(flow, tokens, CAPACITY, now_s):
            return number
        exposure.add(flow, tokens, now_s)
    raise AssertionError("there is no bound")


def test_one_flow_takes_three_quarters_and_another_three_quarters_of_the_rest() -> None:
    exposure = Exposure()
    assert taken(exposure, Flow("a", 1), 1_000) == 30
    assert taken(exposure, Flow("b", 1), 1_000) == 7
    assert taken(exposure, Flow("c", 1), 1_000) == 2


@pytest.mark.parametrize("tokens", [100, 1_000, 10_000, 14_000])
def test_however_many_flows_there_are_a_short_answer_finds_room(tokens: int) -> None:
    exposure = Exposure()
    total = sum([taken(exposure, Flow(f"{number}", 1), tokens) for number in range(300)])
    assert total * tokens <= CAPACITY
    assert exposure.allows(Flow("short", 1), 50, CAPACITY, 0.0)


def test_a_large_first_answer_gets_its_turn_while_others_fill_up_what_comes_free() -> None:
    exposure, flows = Exposure(), [Flow("a", 1), Flow("b", 1)]
    large, size, now_s = Flow("large", 1), 18_000.0, 0.0
    running = [flow for flow in flows for _ in range(taken(exposure, flow, 1_000))]
    for _ in range(100):
        if exposure.allows(large, size, CAPACITY, now_s):
            break
        exposure.keep(large, size, now_s)
        now_s += 0.1
        exposure.remove(running.pop(0), 1_000, 10, now_s)
        for flow in flows:
            if exposure.allows(flow, 1_000, CAPACITY, now_s):
                exposure.add(flow, 1_000, now_s)
                running.append(flow)
    assert now_s < 5.0
    exposure.keep(large, size, now_s)
    assert exposure.allows(flows[1], 1_000, CAPACITY, now_s + 2.0)  # it is looked at no more


def test_what_came_as_expected_may_be_under_way_again() -> None:
    exposure, flow = Exposure(), Flow("a", 1)
    exposure.add(flow, 1_000, 0.0)
    exposure.remove(flow, 1_000, 100_000, 0.0)
    assert taken(exposure, flow, 1_000) == 130


def test_it_is_forgotten() -> None:
    exposure, flow = Exposure(), Flow("a", 1)
    exposure.add(flow, 1_000, 0.0)
    exposure.remove(flow, 1_000, 100_000, 0.0)
    later_s = EARNED_TAU_S * 2.31  # less than a tenth is left
    assert taken(exposure, flow, 1_000, later_s) == 39


def test_what_one_flow_has_earned_is_of_no_use_to_another() -> None:
    exposure, flow = Exposure(), Flow("a", 1)
    exposure.add(flow, 1_000, 0.0)
    exposure.remove(flow, 1_000, 100_000, 0.0)
    assert taken(exposure, Flow("b", 1), 1_000) == 30


def test_what_a_flow_earned_keeps_nobody_out() -> None:
    exposure, flow = Exposure(), Flow("a", 1)
    exposure.add(flow, 1_000, 0.0)
    exposure.remove(flow, 1_000, 100_000, 0.0)
    taken(exposure, flow, 1_000)
    assert taken(exposure, Flow("b", 1), 1_000) == 7


def test_ends_give_back_what_was_taken() -> None:
    exposure, flow = Exposure(), Flow("a", 1)
    for _ in range(taken(exposure, flow, 999.9)):
        exposure.remove(flow, 999.9, 0.0, 0.0)
    assert taken(exposure, Flow("b", 1), 1_000) == 30


def known(tokens: int) -> Flow:
    flow = Flow("known", 1)
    for _ in range(KEPT_MIN):
        flow.answered(tokens)
    return flow


@pytest.mark.parametrize(
    ("flow", "max_tokens", "most"),
    [
        (Flow("new", 1), None, TOKENS),
        (Flow("new", 1), 300, 300),
        (Flow("new", 1), 32_000, TOKENS),
        (known(4), 32_000, TOKENS),  # short answers prove little
        (known(3_000), 32_000, 3_000),
        (known(3_000), 2_500, 2_500),
    ],
)
def test_what_an_answer_may_come_to(flow: Flow, max_tokens: int | None, most: float) -> None:
    ask = Ask("/", max_tokens=max_tokens)
    assert most_tokens(flow, ask) == pytest.approx(most)
    many = Ask("/", max_tokens=max_tokens, choices=16)
    assert most_tokens(flow, many) == pytest.approx(16 * most)


def test_what_generates_nothing_takes_nothing() -> None:
    assert most_tokens(Flow("new", 1), Ask("/", generates=False)) == 0.0
