"""A new backend beside its peers."""

from collections.abc import Callable
from random import Random

import pytest

from penstock.balancing.canary.judge import (
    JUDGED_S_MAX,
    REQUESTS_MAX,
    Newcomer,
    Outcome,
)
from penstock.balancing.canary.metrics import Ended, Ending

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
) -> tuple[Outcome | None, str, int]:
    """What is found of a backend that gets a tenth of the requests, why, and after how many.

    `attacks`: the share of the requests that are the attacker's. It sends all of them there.
    """
    newcomer, rng, now_s = Newcomer(alone=alone), Random(seed), 0.0
    for number in range(requests):
        now_s += 0.05
        attacked = rng.random() < attacks
        client = ATTACKER if attacked else f"client {rng.randrange(clients)}"
        new = attacked or rng.random() < 0.1
        ended = Ended(makes(rng, new, client), canary=new, client=client, fresh=False)
        newcomer.add(ended, now_s)
        found = newcomer.look(now_s) if number % 20 == 0 else None
        if found is not None:
            return found.outcome, found.why, newcomer.requests
    return None, "", newcomer.requests


def flattered(rng: Random, new: bool, client: str) -> Ending:
    """Only the attacker's requests are all served."""
    return failing(0.3)(rng, new and client != ATTACKER, client)


def aimed(rng: Random, new: bool, client: str) -> Ending:
    """Only the attacker's requests fail there, and all of them."""
    return Ending.ERROR if new and client == ATTACKER else Ending.SERVED


def test_one_that_is_like_its_peers_is_known_before_it_has_a_thousand_requests() -> None:
    outcome, _, requests = play(failing(0.0))
    assert outcome is Outcome.NO_WORSE
    assert 100 <= requests <= 1_000
    assert play(failing(0.0), requests=500)[0] is None


@pytest.mark.parametrize(
    ("makes", "attacks", "why", "most"),
    [
        (failing(0.3), 0.0, "errors ", 40),
        (failing(0.05, Ending.BROKEN), 0.0, "broken answers ", REQUESTS_MAX),
        (flattered, 0.3, "errors ", REQUESTS_MAX),
    ],
    ids=["three in ten fail", "answers break", "a client flatters it"],
)
def test_a_worse_one_is_taken_out(makes: Makes, attacks: float, why: str, most: int) -> None:
    outcome, told, requests = play(makes, attacks=attacks)
    assert (outcome, told.startswith(why)) == (Outcome.WORSE, True)
    assert requests <= most


def test_its_refusals_and_empty_answers_are_no_evidence() -> None:
    """A client may aim them: which backend it gets is no lot."""
    for ending in (Ending.REFUSED, Ending.EMPTY):
        assert play(failing(0.3, ending))[0] is not Outcome.WORSE


def test_what_one_client_makes_fail_takes_nobody_out_though_victims_are_there() -> None:
    """It sends most of what the new backend gets, and all of that fails there."""
    for seed in range(1, 21):
        outcome, _, requests = play(aimed, requests=4_000, attacks=0.3, seed=seed)
        assert outcome is not Outcome.WORSE
        assert requests > 300


def test_one_client_alone_decides_only_where_that_is_told() -> None:
    for alone, outcome in ((False, None), (True, Outcome.WORSE)):
        assert play(failing(0.3), clients=1, requests=4_000, alone=alone)[0] is outcome


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
