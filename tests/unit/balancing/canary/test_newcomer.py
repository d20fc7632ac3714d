"""A new backend beside its peers."""

from random import Random

from penstock.balancing.canary.ended import Ended, Ending
from penstock.balancing.canary.newcomer import Newcomer


def play(errors: float, itl: float = 1.0, ttft: float = 1.0, requests: int = 10_000) -> str:
    """What is told of a backend that gets a tenth of the requests, at the last."""
    newcomer, rng, now_s = Newcomer(), Random(1), 0.0
    for number in range(requests):
        now_s += 0.05
        new = rng.random() < 0.1
        failed = new and rng.random() < errors
        ended = Ended(
            Ending.ERROR if failed else Ending.SERVED,
            canary=new,
            client=f"client {rng.randrange(20)}",
            ttft_s=None if failed else rng.lognormvariate(-2.0, 0.5) * (ttft if new else 1.0),
            itl_s=None if failed else rng.lognormvariate(-4.0, 0.3) * (itl if new else 1.0),
        )
        newcomer.add(ended, now_s)
        worse = newcomer.worse(now_s) if number % 20 == 0 else ""
        if worse:
            return worse
    return "known" if newcomer.known() else "open"


def test_one_that_is_like_its_peers_is_soon_known() -> None:
    assert play(0.0) == "known"
    assert play(0.0, requests=500) == "open"


def test_one_that_fails_more_than_its_peers_is_taken_out() -> None:
    assert play(0.03).startswith("errors ")


def test_one_that_streams_more_slowly_than_its_peers_is_taken_out() -> None:
    assert play(0.0, itl=1.3).startswith("further tokens take 1.3")


def test_its_cold_cache_is_no_fault() -> None:
    assert play(0.0, ttft=2.0) == "known"
