"""A canary that hangs: requests that wait far longer than the stable version's are compared."""

from heapq import heappop, heappush
from random import Random
from typing import Any, NamedTuple
from weakref import ref

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.canary.metrics import Ended, Ending
from penstock.balancing.canary.steps import Canary, Draw, Stage
from penstock.balancing.canary.usual import FAR_S, FAR_TIMES, Waits
from penstock.balancing.lease import Lease
from penstock.conf.canary import JudgeSettings
from tests.unit.balancing.canary.play import settings

PERIOD_S = 0.05


class Way(NamedTuple):
    """How a request goes on."""

    draw: Draw
    lease: Lease
    on_canary: bool
    ending: Ending
    takes_s: float


class Hanging:
    """Requests, one each 0.05 s; some never get a token. A request that hangs stays open for
    `patience_s`, and then its client leaves."""

    def __init__(
        self,
        *,
        canary: float,
        stable: float = 0.0,
        errors: float = 0.0,
        first_s: float = 0.2,
        sigma: float = 0.5,
        long: float = 0.0,
        patience_s: float = 600.0,
        stream: bool = True,
        seed: int = 1,
    ) -> None:
        """`canary`, `stable`: the shares that hang. `errors`: of the canary's. `first_s`, `sigma`:
        of the answers. `long`: the share of both versions' that takes a minute."""
        judge = JudgeSettings(
            broken=None, empty=None, refused=None, ttft=None, itl=None, length=None
        )
        self.canary = Canary(settings(judge=judge), 0.0)
        self.rng = Random(seed)
        self.shares = {True: canary, False: stable}
        self.errors, self.long = errors, long
        self.first_s, self.sigma, self.patience_s = first_s, sigma, patience_s
        self.stream = stream
        self.backend = Backend("b", "http://b")
        self.now_s = 0.0
        self.to_canary = 0
        self.left: list[bool] = []  # of those that left: whether their judge knew already
        self._ends: list[tuple[float, int, Way]] = []
        self._number = 0

    def requests(self, number: int) -> Stage:
        for each in range(number):
            if self.canary.percent in (0.0, 100.0):
                break
            self.now_s += PERIOD_S
            self._begin()
            self._end()
            if each % 20 == 19:
                self.canary.look(self.now_s)
        return self.canary.stage

    def _begin(self) -> None:
        rng = self.rng
        on_canary = 100 * rng.random() < self.canary.percent
        client = f"client {rng.randrange(20)}"
        self.to_canary += on_canary
        ask = Ask("/", prompt_tokens=500, max_tokens=100, stream=self.stream, client=client)
        draw = Draw(self.canary, ask, rng.getrandbits(60))
        lease = Lease(self.backend, ask, self.now_s)
        draw.sent(lease, on_canary=on_canary)
        ending, takes_s = Ending.SERVED, self.first_s * rng.lognormvariate(0.0, self.sigma)
        if rng.random() < self.long:
            takes_s = 60.0
        if rng.random() < self.shares[on_canary]:
            ending, takes_s = Ending.LEFT, self.patience_s
        elif on_canary and rng.random() < self.errors:
            ending, takes_s = Ending.ERROR, 0.0
        self._number += 1
        way = Way(draw, lease, on_canary, ending, takes_s)
        heappush(self._ends, (self.now_s + takes_s, self._number, way))

    def _end(self) -> None:
        while self._ends and self._ends[0][0] <= self.now_s:
            way = heappop(self._ends)[2]
            way.lease.end(self.now_s)
            if way.ending is Ending.LEFT:
                self.left.append(way.draw.told)
            if not way.draw.told:
                self.canary.ended(self._ended(way), self.now_s)

    def _ended(self, way: Way) -> Ended:
        waiting = way.draw.waiting(self.now_s)
        first_s = way.takes_s if way.ending is Ending.SERVED else None
        return Ended(
            way.ending,
            canary=way.on_canary,
            client=waiting.client,
            key=way.draw.key,
            fresh=way.draw.fresh,
            prompt_tokens=500,
            stream=self.stream,
            ttft_s=first_s if self.stream else None,
            first_s=first_s,
            waited_s=way.takes_s if way.ending is Ending.LEFT else 0.0,
        )


# Good plain answers of both versions that take far longer than others.
LONG: dict[str, Any] = {"stream": False, "long": 0.05}
SLOW: dict[str, Any] = {"stream": False, "first_s": 4.0, "sigma": 1.0}
WAITS, ERRORS = "far too long waits", "errors"


@pytest.mark.parametrize(
    ("fields", "seeds", "why", "most"),
    [
        # At two a second: for the first ten seconds nobody can know.
        ({"canary": 0.9}, 10, WAITS, 80),
        ({"canary": 0.9, "patience_s": 15.0}, 10, WAITS, 80),
        ({"canary": 0.9, "stream": False}, 10, WAITS, 80),
        ({"canary": 0.9, "stream": False, "patience_s": 15.0}, 10, WAITS, 80),
        ({"canary": 0.05}, 1, WAITS, 400),
        ({"canary": 1.0}, 1, WAITS, 60),  # for everybody, and all clients are patient
        ({"canary": 0.2} | LONG, 1, WAITS, 400),
        # Long plain answers are no errors.
        ({"canary": 0.0, "errors": 0.02} | LONG, 10, ERRORS, 1_500),
        ({"canary": 0.0, "errors": 0.02} | SLOW, 10, ERRORS, 1_500),
    ],
)
def test_a_worse_one_goes_back_within_so_many_requests(
    fields: dict[str, Any], seeds: int, why: str, most: int
) -> None:
    for seed in range(1, seeds + 1):
        play = Hanging(seed=seed, **fields)
        assert play.requests(20_000) is Stage.ROLLED_BACK, play.canary.why
        assert play.canary.why.startswith(f"worse: {why} ")
        assert play.to_canary <= most


@pytest.mark.parametrize(
    ("fields", "seeds", "requests"),
    [
        ({"canary": 0.0}, 5, 6_000),
        ({"canary": 0.05, "stable": 0.05}, 5, 6_000),  # both hang as often
        ({"canary": 0.3, "stable": 0.3}, 5, 6_000),
        ({"canary": 0.5, "patience_s": FAR_S - 1.0}, 1, 5_000),  # clients that leave early
        # All answers take minutes.
        ({"canary": 0.3, "first_s": 100.0, "patience_s": 300.0, "stream": False}, 1, 8_000),
    ],
)
def test_one_that_is_not_shown_to_hang_more_often_does_not(
    fields: dict[str, Any], seeds: int, requests: int
) -> None:
    for seed in range(1, seeds + 1):
        play = Hanging(seed=seed, **fields)
        assert play.requests(requests) is not Stage.ROLLED_BACK, play.canary.why


@pytest.mark.parametrize("tail", [LONG, SLOW])
def test_an_equal_one_with_long_plain_answers_is_promoted(tail: dict[str, Any]) -> None:
    for seed in range(1, 6):
        play = Hanging(canary=0.0, seed=seed, **tail)
        assert play.requests(60_000) is Stage.PROMOTED, play.canary.why


def test_a_request_that_waited_too_long_is_counted_once() -> None:
    play = Hanging(canary=0.1, stable=0.1, patience_s=20.0)
    play.requests(2_000)
    assert len(play.left) > 100
    assert all(play.left[20:])  # at first nobody knows what is usual


def test_a_client_that_left_between_two_looks_counts_as_one_that_waits() -> None:
    play = Hanging(canary=0.0)
    play.requests(400)
    for waited_s, wanted in ((FAR_S - 1.0, Ending.LEFT), (FAR_S + 1.0, Ending.HUNG)):
        left = Ended(Ending.LEFT, canary=True, client="a", prompt_tokens=500, waited_s=waited_s)
        play.canary.ended(left, play.now_s)
        assert left.ending is wanted


def test_a_process_that_did_not_run_blames_nobody() -> None:
    play = Hanging(canary=0.0)
    play.requests(400)
    play.shares[True] = 1.0
    play.requests(100)
    play.canary.slept()
    play.now_s += 3_600.0
    play.shares[True] = 0.0
    assert play.requests(2_000) is not Stage.ROLLED_BACK


class Open:
    """A request that waits, and how often somebody asked about it."""

    def __init__(self, sent_s: float) -> None:
        self.sent_s = sent_s
        self.told = False
        self.waits = True
        self.asked = 0

    def waiting(self, now_s: float) -> Ended:
        self.asked += 1
        waited_s = now_s - self.sent_s
        return Ended(Ending.HUNG, canary=True, client="a", prompt_tokens=500, waited_s=waited_s)


def test_a_look_makes_nothing_for_those_that_have_not_waited_long() -> None:
    canary = Canary(settings(), 0.0)
    requests = [Open(0.1 * number) for number in range(300)]
    for each in requests:
        canary.sent(each)
    canary.look(30.0)
    assert [each.asked for each in requests] == [1] * 201 + [0] * 99


def told_at(canary: Canary, now_s: float, *requests: Open) -> list[int]:
    """How often each was told of as one that hangs, after a look."""
    canary.look(now_s)
    return [each.asked for each in requests]


def test_one_that_is_sent_again_hides_no_other_and_is_told_once() -> None:
    play = Hanging(canary=0.0)
    play.requests(400)
    canary, now_s = play.canary, play.now_s
    first, other = Open(now_s), Open(now_s + 1.0)
    canary.sent(first)
    canary.sent(other)
    first.sent_s = now_s + 8.0
    canary.sent(first)
    assert told_at(canary, now_s + 11.5, first, other) == [0, 1]
    assert told_at(canary, now_s + 18.5, first, other) == [1, 1]
    first.sent_s = now_s + 19.0
    canary.sent(first)
    assert told_at(canary, now_s + 40.0, first, other) == [1, 1]


@pytest.mark.parametrize("move", ["promote", "abort"])
def test_a_canary_at_its_end_keeps_no_requests(move: str) -> None:
    """Neither those from before, nor those from then on."""
    canary = Canary(settings(), 0.0)
    kept = []
    for number in range(2):
        request = Open(1.0 + number)
        kept.append(ref(request))
        canary.sent(request)
        del request
        assert (kept[-1]() is not None) is (number == 0)
        getattr(canary, move)(1.5)
        assert kept[-1]() is None


def test_answers_of_the_canary_do_not_teach_what_is_usual() -> None:
    play = Hanging(canary=0.0)

    def answers(first_s: float, *, canary: bool) -> None:
        for number in range(200):
            made = Ended(Ending.SERVED, canary=canary, client=f"{number}", first_s=first_s)
            play.canary.ended(made, 0.0)

    def leaves(waited_s: float) -> Ending:
        left = Ended(Ending.LEFT, canary=True, client="a", waited_s=waited_s)
        play.canary.ended(left, 0.0)
        return left.ending

    answers(300.0, canary=True)
    assert leaves(1e6) is Ending.LEFT  # nobody knows what is usual
    answers(0.2, canary=False)
    answers(300.0, canary=True)
    assert leaves(FAR_S) is Ending.HUNG


def test_what_is_far_follows_what_is_usual() -> None:
    waits = Waits()
    assert not waits.is_far(1, 1e6)  # nobody knows what is usual
    for _ in range(50):
        waits.add(1, 4.0)
    assert not waits.is_far(1, 4.0 * FAR_TIMES - 1.0)
    assert waits.is_far(1, 4.0 * FAR_TIMES + 3.0)
    assert not waits.is_far(2, 1e6)
    for _ in range(50):
        waits.add(2, 0.1)
    assert not waits.is_far(2, FAR_S - 0.1)
    assert waits.is_far(2, FAR_S)
