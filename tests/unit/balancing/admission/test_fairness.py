"""Two tenants that always have something waiting are given the same, by their weights.

What a tenant is given: the tokens of its prompts, and twice those of its answers.
"""

from collections import Counter, deque
from collections.abc import Sequence
from random import Random
from zlib import crc32

import pytest

from penstock.balancing.admission.queued_request import QueuedRequest
from tests.unit.balancing.admission.door import FILLS, Door

LONGEST, LONGEST_ANSWER = 4_000, 800
# Three times what virtual token counters promise: 2 (prompt + 2 x answer).
BOUND = 3 * 2 * (LONGEST + 2 * LONGEST_ANSWER)
# A wake sends fewer: so none of them ever has nothing waiting.
BACKLOG = 32
KINDS = ("small", "large", "any")


class Served:
    """Two engines serve, in random order, tenants that always have something waiting."""

    def __init__(self, seed: int, weights: Sequence[float]) -> None:
        self.rng = Random(seed)
        self.names = [f"tenant {number}" for number in range(len(weights))]
        self.weights = dict(zip(self.names, weights, strict=True))
        self.kinds = [self.rng.choice(KINDS) for _ in weights]
        self.answers = [self.rng.choice(KINDS) for _ in weights]
        self.door = Door("a", "b", weights=self.weights, wakes_at_once=False)
        self.given = dict.fromkeys(self.names, 0.0)
        self.differences = [0.0]
        self._open: deque[tuple[QueuedRequest, int]] = deque()
        self._waiting = dict.fromkeys(self.names, 0)

    def run(self, requests: int) -> None:
        """Serve so many. Time stands still: only who is next counts."""
        for _ in range(requests):
            while (least := min(self._waiting, key=self._waiting.__getitem__)) is not None:
                if self._waiting[least] >= BACKLOG:
                    break
                self._enter(self.names.index(least))
            self._serve()

    def _size(self, kind: str, most: int) -> int:
        least = most // 2 if kind == "large" else 1
        return self.rng.randint(least, most // 20 if kind == "small" else most)

    def _enter(self, number: int) -> None:
        door, name = self.door, self.names[number]
        request = door.enter(self._size(self.kinds[number], LONGEST), name=name)
        if request in door.leases:
            self._open.append((request, self._answer_of(request)))
        else:
            self._waiting[name] += 1

    def _serve(self) -> None:
        """One has its first token and later its answer, and others are sent for it."""
        door = self.door
        self._open.rotate(self.rng.randrange(len(self._open)))
        request, tokens = self._open.popleft()
        name = request.name
        door.first(request, 0.0)
        self.given[name] += request.ask.prompt_tokens
        self._note()
        for _ in range(8):
            part = -(-tokens // 8)
            door.leases[request].tokens(part)
            self.given[name] += 2 * part
            self._note()
        door.leases[request].complete(0.0)
        for other in door.wake(0.0):
            self._open.append((other, self._answer_of(other)))
            self._waiting[other.name] -= 1

    def _answer_of(self, request: QueuedRequest) -> int:
        return self._size(self.answers[self.names.index(request.name)], LONGEST_ANSWER)

    def _note(self) -> None:
        first, second = self.names[0], self.names[1]
        self.differences.append(
            self.given[first] / self.weights[first] - self.given[second] / self.weights[second]
        )


def spread(differences: Sequence[float]) -> float:
    """The largest difference over any interval."""
    return max(differences) - min(differences)


@pytest.mark.parametrize("seed", range(3))
def test_the_difference_does_not_grow_in_the_long_run(seed: int) -> None:
    served = Served(seed, (1.0, 3.0))
    served.run(1_500)
    assert spread(served.differences) <= BOUND
    assert min(served.given.values()) > 3 * BOUND


# A client that changes its name ------------------------------------------------------------

QUEUES = 4


def share_of_honest(names: Sequence[str]) -> float:
    """The share of one that keeps to its name, of two always waiting, beside a flood of these."""
    door, rng = Door("a", "b", wakes_at_once=False), Random(1)
    given = {True: 0, False: 0}
    number = 0
    open_: deque[QueuedRequest] = deque()
    waiting: Counter[bool] = Counter()
    for step in range(600):
        while waiting[True] < 2 or waiting[False] < 40:
            is_honest = waiting[True] < 2
            request = door.enter(2_000, name="honest" if is_honest else names[number % len(names)])
            number += not is_honest
            if request in door.leases:
                open_.append(request)
            else:
                waiting[is_honest] += 1
        open_.rotate(rng.randrange(len(open_)))
        request = open_.popleft()
        door.finish(request, 0.0, 50)
        if step >= 100:
            given[request.name == "honest"] += request.ask.prompt_tokens
        for sent in door.wake(0.0):
            open_.append(sent)
            waiting[sent.name == "honest"] -= 1
    return given[True] / sum(given.values())


def test_with_few_queues_a_new_name_for_each_request_gains_nothing() -> None:
    """Names are hashed to a few queues: one with many names has as much as one with so many."""
    hashed = [f"queue {crc32(f'{number}'.encode()) % QUEUES}" for number in range(5_000)]
    kept = share_of_honest([f"queue {number}" for number in range(QUEUES)])
    assert share_of_honest(hashed) == pytest.approx(kept, 0.05)
    assert kept == pytest.approx(1 / (QUEUES + 1), 0.1)


def test_with_a_queue_for_each_name_it_would_gain() -> None:
    assert share_of_honest([f"{number}" for number in range(5_000)]) < 0.1


# A flood -----------------------------------------------------------------------------------


def test_behind_a_thousand_of_one_tenant_another_one_is_among_the_next_two() -> None:
    door = Door("a", "b")
    flood = [door.enter(2_500, name="flood") for _ in range(1_000)]
    under_way = deque(request for request in flood if request in door.leases)
    for _ in range(30):
        door.finish(under_way.popleft(), 0.0, 10)
        under_way.extend(door.wake(0.0))
    request = door.enter(2_500, name="other")
    assert request.waits
    sent: list[QueuedRequest] = []
    while len(sent) < 2:
        door.finish(under_way.popleft(), 0.0, 10)
        sent += door.wake(0.0)
        under_way.extend(sent)
    assert request in sent[:2]


def after_an_answer_without_an_end(seconds: float) -> list[str]:
    """Two tenants always wait, and one has an endless answer that runs for so long. Who is sent?"""
    door = Door("a")
    endless = door.enter(100, name="endless")
    door.first(endless, 0.0)
    now_s = 0.0
    for name in ("endless", "other"):
        for _ in range(60):
            door.enter(FILLS, now_s, name=name, max_tokens=1)
    while now_s < seconds:
        now_s += 0.2
        door.leases[endless].tokens(20)
        door.wake(now_s)
    sent = []
    for _ in range(20):
        running = next(each for each in door.running if each is not endless)
        door.finish(running, now_s)
        sent += [each.name for each in door.wake(now_s)]
    return sent


def test_an_answer_without_an_end_is_charged_while_it_goes_on() -> None:
    """It counts like twenty prompts, so the other tenant has the next turns."""
    assert after_an_answer_without_an_end(1.0).count("endless") >= 8
    assert after_an_answer_without_an_end(300.0).count("endless") <= 1


def charged(request: QueuedRequest) -> float:
    assert request.tenant is not None
    return request.tenant.served


def test_an_answer_that_is_cut_short_is_charged_for_what_came_of_it() -> None:
    door = Door("a")
    cut = door.enter(1_000, name="cut", output_tokens=5_000.0)
    whole = door.enter(1_000, name="whole", output_tokens=5_000.0)
    door.first(cut, 0.1)
    door.leases[cut].tokens(100)
    door.leases[cut].end(0.2)
    door.finish(whole, 0.3, 100)
    assert charged(cut) == charged(whole) == 1_000 + 2 * 100


def test_a_plain_answer_that_is_given_up_is_charged_for_the_time_that_it_had() -> None:
    """Nobody has seen how long it was."""
    door = Door("a")
    plain = door.enter(100, name="plain", stream=False)
    streamed = door.enter(100, name="streamed")
    for request in (plain, streamed):
        door.leases[request].end(20.0)
    step_s = door.backends[0].decode_speed.itl_s(0.0)
    assert charged(plain) >= charged(streamed) + 2.0 * 0.9 * 20.0 / step_s - 1_000


def test_embeddings_are_charged_for_their_prompts_alone_and_failures_for_nothing() -> None:
    door = Door("a")
    door.finish(door.enter(1_000, name="x"), 0.1, tokens=300)
    embedding = door.enter(500, 1.0, name="x", generates=False, stream=False)
    before = charged(embedding)
    door.enter(700, 1.0, name="x", generates=False, stream=False)
    assert charged(embedding) == before + 700
    door = Door("a")
    failed = door.enter(1_000, 1.0, name="x", output_tokens=500.0)
    door.leases[failed].fail(1.1)
    assert charged(failed) == 0.0


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 3.0)])
def test_over_any_interval_they_are_given_the_same_by_weight(weights: tuple[float, float]) -> None:
    """Until the first answers are whole, a dozen requests are charged too little."""
    for seed in range(150):
        served = Served(seed, weights)
        served.run(90)
        learnt = len(served.differences)
        assert spread(served.differences) <= 2 * BOUND, seed
        served.run(180)
        assert spread(served.differences[learnt:]) <= BOUND, seed
