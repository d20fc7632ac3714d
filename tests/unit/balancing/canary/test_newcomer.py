"""A new backend beside its peers."""

from collections.abc import Callable
from random import Random

from penstock.balancing.canary.ended import Ended, Ending
from penstock.balancing.canary.newcomer import (
    JUDGED_S_MAX,
    REQUESTS_MAX,
    Found,
    Newcomer,
    Outcome,
)

Makes = Callable[[Random, bool, str], Ending]
ATTACKER = "client 0"


def failing(share: float, ending: Ending = Ending.ERROR) -> Makes:
    """The new backend fails this share of its requests."""

    def makes(rng: Random, new: bool, client: str) -> Ending:
        return ending if new and rng.random() < share else Ending.SERVED

    return makes


def play(
    makes: Makes,
    *,
    requests: int = 20_000,
    clients: int = 20,
    attacks: float = 0.0,
    alone: bool = False,
    seed: int = 1,
) -> tuple[Found | None, Newcomer]:
    """What is found of a backend that gets a tenth of the requests, and what it was found by.

    `attacks`: the share of the requests that are the attacker's. It sends all of them there.
    """
    newcomer, rng, now_s = Newcomer(alone=alone), Random(seed), 0.0
    found = None
    for number in range(requests):
        now_s += 0.05
        attacked = rng.random() < attacks
        client = ATTACKER if attacked else f"client {rng.randrange(clients)}"
        new = attacked or rng.random() < 0.1
        ended = Ended(makes(rng, new, client), canary=new, client=client, fresh=False)
        newcomer.add(ended, now_s)
        if number % 20 == 0:
            found = newcomer.look(now_s)
        if found is not None:
            break
    return found, newcomer


def test_one_that_is_like_its_peers_is_known_before_it_has_a_thousand_requests() -> None:
    found, newcomer = play(failing(0.0))
    assert found is not None
    assert found.outcome is Outcome.NO_WORSE
    assert 100 <= newcomer.requests <= 1_000
    assert play(failing(0.0), requests=500)[0] is None


def test_one_that_fails_three_in_ten_is_taken_out_within_forty_requests() -> None:
    found, newcomer = play(failing(0.3))
    assert found is not None
    assert found.outcome is Outcome.WORSE
    assert found.why.startswith("errors ")
    assert newcomer.requests <= 40


def test_one_whose_answers_break_is_taken_out() -> None:
    found, _ = play(failing(0.05, Ending.BROKEN))
    assert found is not None
    assert found.outcome is Outcome.WORSE
    assert found.why.startswith("broken answers ")


def test_its_refusals_and_empty_answers_are_no_evidence() -> None:
    """A client may aim them: which backend it gets is no lot."""
    for ending in (Ending.REFUSED, Ending.EMPTY):
        found, _ = play(failing(0.3, ending))
        assert found is None or found.outcome is not Outcome.WORSE


def test_what_one_client_makes_fail_takes_nobody_out_though_victims_are_there() -> None:
    """It sends most of what the new backend gets, and all of that fails there."""

    def makes(rng: Random, new: bool, client: str) -> Ending:
        return Ending.ERROR if new and client == ATTACKER else Ending.SERVED

    for seed in range(1, 21):
        found, newcomer = play(makes, requests=4_000, attacks=0.3, seed=seed)
        assert found is None or found.outcome is not Outcome.WORSE
        assert newcomer.requests > 300


def test_a_worse_one_is_taken_out_though_a_client_flatters_it() -> None:
    def makes(rng: Random, new: bool, client: str) -> Ending:
        worse = new and client != ATTACKER and rng.random() < 0.3
        return Ending.ERROR if worse else Ending.SERVED

    found, _ = play(makes, attacks=0.3)
    assert found is not None
    assert found.outcome is Outcome.WORSE


def test_one_client_alone_decides_only_where_that_is_told() -> None:
    found, _ = play(failing(0.3), clients=1, requests=4_000)
    assert found is None
    found, _ = play(failing(0.3), clients=1, requests=4_000, alone=True)
    assert found is not None
    assert found.outcome is Outcome.WORSE


def test_it_is_new_no_longer_when_its_requests_or_its_time_are_used_up() -> None:
    """Beside peers of which nobody has a request, nothing is shown."""

    def told_after(requests: int, period_s: float) -> Outcome | None:
        newcomer = Newcomer()
        for number in range(requests):
            newcomer.add(Ended(Ending.SERVED, canary=True, client="a"), number * period_s)
        found = newcomer.look(requests * period_s)
        return found.outcome if found is not None else None

    assert told_after(REQUESTS_MAX - 1, 0.01) is None
    assert told_after(REQUESTS_MAX, 0.01) is Outcome.UNCLEAR
    assert told_after(2, JUDGED_S_MAX / 4) is None
    assert told_after(2, JUDGED_S_MAX) is Outcome.UNCLEAR
    assert Newcomer().look(2 * JUDGED_S_MAX) is None  # it had no request yet
