"""What is still to come of answers, against a naive computation over the last whole ones."""

from collections.abc import Sequence
from random import Random
from statistics import fmean

import pytest

from penstock.balancing.admission.spread import EVERY, KEPT, KEPT_MIN, TIMES_MAX, UNKNOWN, Spread
from penstock.balancing.admission.ticket import MEAN_SHARE, Flow
from penstock.balancing.ask import Ask

ASK = Ask("/", output_tokens=200.0)
NOBODY = Spread()


def told(answers: Sequence[int], others: Spread | None = None) -> Flow:
    """A flow of which these answers were whole. `others` hears of them too."""
    flow = Flow("f", 1)
    for tokens in answers:
        times = flow.answered(tokens)
        if others is not None:
            others.observe(times)
    return flow


def left(flow: Flow, generated: int, ask: Ask = ASK, others: Spread = NOBODY) -> float:
    return flow.left_tokens(ask, generated, others)


def naive(answers: Sequence[int], generated: int) -> float:
    """The mean remainder of the last answers that were longer, each beside the mean of then."""
    mean, times = float(answers[0]), []
    for number, tokens in enumerate(answers, 1):
        times.append(min(tokens / mean, TIMES_MAX))
        mean += max(MEAN_SHARE, 1 / number) * (min(tokens, TIMES_MAX * mean) - mean)
    begun = generated / mean
    longer = [each - begun for each in times[-KEPT:] if each > begun]
    return mean * (fmean(longer) if longer else UNKNOWN)


def lengths(rng: Random, count: int) -> list[int]:
    """Of a long tail."""
    return [1 + int(rng.lognormvariate(5.0, 1.0)) for _ in range(count)]


@pytest.mark.parametrize("rounds", [0, 1, 3, 5, 40])
def test_it_is_the_mean_remainder_of_the_last_answers(rounds: int) -> None:
    answers = lengths(Random(rounds), KEPT_MIN + rounds * EVERY)
    flow = told(answers)
    for generated in (0, 1, 10, 100, 300, 1_000, 100_000):
        assert left(flow, generated) == pytest.approx(naive(answers, generated))


def test_a_few_more_answers_change_nothing_but_the_mean() -> None:
    answers = lengths(Random(1), KEPT_MIN + EVERY - 1)
    flow = told(answers)
    for generated in (0, 10, 100):
        before = naive(answers[:KEPT_MIN], generated)
        assert left(flow, generated) == pytest.approx(before, 0.3)


def test_few_answers_leave_the_rest_of_the_expected_length_and_a_part_of_it_always() -> None:
    flow = told([100] * (KEPT_MIN - 1))
    assert left(flow, 0) == pytest.approx(100.0)
    assert left(flow, 60) == pytest.approx(40.0)
    assert left(flow, 500) == pytest.approx(100.0 * UNKNOWN)


def test_a_flow_without_answers_is_expected_to_be_as_its_requests_say() -> None:
    assert left(Flow("new", 1), 50) == pytest.approx(150.0)


def test_an_answer_longer_than_all_goes_on_for_a_while() -> None:
    flow = told([100] * 50)
    for generated in (100, 101, 10_000):
        assert left(flow, generated) == pytest.approx(100.0 * UNKNOWN)


def test_no_more_is_to_come_than_its_client_allows() -> None:
    flow = told([100] * 50)
    ask = ASK.changed(max_tokens=80)
    assert [left(flow, generated, ask) for generated in (0, 70, 90)] == [80.0, 10.0, 0.0]


def test_each_choice_of_each_prompt_has_its_own_remainder() -> None:
    flow = told([100] * 50)
    ask = ASK.changed(prompts=2, choices=3)
    assert left(flow, 6 * 40, ask) == pytest.approx(6 * 60.0)
    assert left(flow, 6 * 40, ask.changed(max_tokens=60)) == pytest.approx(6 * 20.0)


@pytest.mark.parametrize("seed", range(20))
def test_longest_is_no_less_than_any_remainder(seed: int) -> None:
    rng = Random(seed)
    flow = told(lengths(rng, rng.randint(2, 200)))
    longest = flow.spread.longest
    for generated in range(0, 4_000, 7):
        assert left(flow, generated) <= longest * flow.answer_tokens * (1 + 1e-9)


# What one flow does to another -------------------------------------------------------------

HOSTILE = ([10**6] * KEPT, [1, 10**7] * KEPT, [3**n for n in range(99)], [10**6] + [1] * KEPT)


@pytest.mark.parametrize("answers", HOSTILE)
def test_the_answers_of_one_flow_say_nothing_of_another_that_has_answers(
    answers: list[int],
) -> None:
    others = Spread()
    flow = told([100] * KEPT, others)
    before = [left(flow, generated, others=others) for generated in (0, 50, 99, 200)]
    told(answers, others)
    assert [left(flow, generated, others=others) for generated in (0, 50, 99, 200)] == before


@pytest.mark.parametrize("answers", HOSTILE[:-1])
def test_of_a_flow_without_answers_they_say_a_few_times_the_usual_at_most(
    answers: list[int],
) -> None:
    others = Spread()
    told(answers, others)
    for generated in (0, 100, 199):
        assert left(Flow("new", 1), generated, others=others) <= TIMES_MAX * 200.0
