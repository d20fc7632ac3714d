"""One client does not decide what is learnt of a backend's prefill speed, however much it sends."""

from random import Random

import pytest

from penstock.balancing.speed.estimates import PRIOR_WORK_PER_S, PrefillSpeed, prior_prefill_s
from penstock.balancing.speed.least_squares import VOTE_S

TRUE_WORK_PER_S = 5_600.0


def answer(
    speed: PrefillSpeed, work: float, seconds: float, client: str, now_s: float = 0.0
) -> None:
    """An answer of one client, as a lease tells it."""
    speed.recent.observe(seconds / prior_prefill_s(work), client)
    speed.observe(work, seconds, client, now_s)


def taught(
    speed: PrefillSpeed, clients: str, answers: int, work_per_s: float, now_s: float
) -> None:
    """Give each client `answers` answers, one a second, from an engine of that speed."""
    for place in range(answers):
        for client in clients:
            seconds = 0.020 + 8_000.0 / work_per_s
            answer(speed, 8_000.0, seconds, client, now_s + place)


def honest(speed: PrefillSpeed, rng: Random, client: str) -> None:
    work = rng.uniform(500.0, 8_000.0)
    answer(speed, work, (0.020 + work / TRUE_WORK_PER_S) * rng.lognormvariate(0.0, 0.2), client)


@pytest.mark.parametrize("victims", [1, 3, 40])
def test_prompts_found_in_a_cache_that_we_cannot_see_teach_their_client_alone(victims: int) -> None:
    """It asks before all others, and twenty times as often as they do."""
    speed, rng = PrefillSpeed(), Random(1)
    for _ in range(50):
        answer(speed, 60_000.0, 0.05, "attacker")
    assert speed.work_per_s > 10 * PRIOR_WORK_PER_S  # as of an engine with one client
    for place in range(60 * victims):
        honest(speed, rng, f"victim {place % victims}")
        for _ in range(20 // victims):
            answer(speed, 60_000.0, 0.05, "attacker")
    assert speed.work_per_s == pytest.approx(TRUE_WORK_PER_S, rel=0.25)


def test_prompts_that_are_slow_by_themselves_teach_their_client_alone() -> None:
    speed, rng = PrefillSpeed(), Random(1)
    for place in range(300):
        honest(speed, rng, f"victim {place % 3}")
        answer(speed, 500.0, 5.0, "attacker")
    assert speed.work_per_s == pytest.approx(TRUE_WORK_PER_S, rel=0.25)
    assert speed.step_s < 0.2


LATER_S = VOTE_S + 20.0
BUSY = [("a", 40, 2_000.0, 0.0), ("bc", 2, 2_000.0, 40.0)]
# Who teaches, with how many answers of which speed and when (None: it is forgotten); what is known.
LESSONS: dict[str, tuple[list[tuple[str, int, float, float] | None], float]] = {
    "one busy client does not decide because the others are new": (
        [("a", 40, 1_000_000.0, 0.0), ("bcd", 3, 15_000.0, 0.0)],
        15_000.0,
    ),
    "a few of new ones wipe out nothing": ([*BUSY], 2_000.0),
    "nor does one that is far off": ([*BUSY, ("d", 1, 15_000.0, 50.0)], 2_000.0),
    "nor do two, beside two who know": (
        [("ab", 40, 2_000.0, 0.0), ("cd", 2, 15_000.0, 40.0)],
        2_000.0,
    ),
    "who left has no say for ever": (
        [("abcdefg", 10, 15_000.0, 0.0), ("a", 300, 5_000.0, LATER_S)],
        5_000.0,
    ),
    "nor its place": ([("abcdefg", 10, 5_000.0, 0.0), ("h", 20, 15_000.0, LATER_S)], 15_000.0),
    "what was forgotten has none": (
        [("abcdefg", 10, 15_000.0, 0.0), None, ("a", 20, 5_000.0, 20.0)],
        5_000.0,
    ),
}


@pytest.mark.parametrize("kind", LESSONS)
def test_who_has_a_say(kind: str) -> None:
    lessons, work_per_s = LESSONS[kind]
    speed = PrefillSpeed()
    for each in lessons:
        if each is None:
            speed.forget()
        else:
            taught(speed, *each)
    assert speed.work_per_s == pytest.approx(work_per_s, rel=0.2)
    assert len(speed._fit._fits) <= 7


@pytest.mark.parametrize("clients", [1, 7, 200])
def test_honest_clients_teach_the_speed_however_many_they_are(clients: int) -> None:
    speed, rng = PrefillSpeed(), Random(1)
    for place in range(700):
        honest(speed, rng, f"client {place % clients}")
    assert speed.work_per_s == pytest.approx(TRUE_WORK_PER_S, rel=0.1)


def test_what_is_kept_does_not_grow_with_the_clients() -> None:
    speed, rng = PrefillSpeed(), Random(1)
    for place in range(1_000):
        honest(speed, rng, f"client {place}")
    assert len(speed._fit._fits) == 7
    assert speed.samples == 1_000
    assert speed.weight < 201  # as with one client


def test_clients_with_short_prompts_have_no_say_in_what_a_token_costs() -> None:
    """Their answers take as long as a step, on any engine."""
    speed, rng = PrefillSpeed(), Random(1)
    for _ in range(200):
        for client, work in (("long", rng.uniform(500.0, 20_000.0)), ("short", 60.0)):
            seconds = (0.020 + work / 46_000.0) * rng.lognormvariate(0.0, 0.2)
            answer(speed, work, seconds, client)
    assert speed.work_per_s == pytest.approx(46_000.0, rel=0.1)
