"""Two flows that always have something waiting are given the same, by their weights.

What a flow is given: the tokens of its prompts, and twice those of its answers.
"""

from collections import Counter, deque
from collections.abc import Sequence
from functools import cache
from random import Random
from statistics import fmean
from zlib import crc32

import pytest

from penstock.balancing.admission.ticket import Flow, Ticket
from tests.unit.balancing.admission.lines import FILLS, Door

LONGEST, LONGEST_ANSWER = 4_000, 800
# Three times what virtual token counters promise: 2 (prompt + 2 x answer).
BOUND = 3 * 2 * (LONGEST + 2 * LONGEST_ANSWER)
# A wake sends fewer: so none of them ever has nothing waiting.
BACKLOG = 32
KINDS = ("small", "large", "any")


class Served:
    """Two engines serve, in random order, flows that never have nothing waiting."""

    def __init__(self, seed: int, weights: Sequence[float]) -> None:
        self.rng = Random(seed)
        self.names = [f"flow {number}" for number in range(len(weights))]
        self.weights = dict(zip(self.names, weights, strict=True))
        self.kinds = [self.rng.choice(KINDS) for _ in weights]
        self.answers = [self.rng.choice(KINDS) for _ in weights]
        self.door = Door("a", "b", weights=self.weights)
        self.given = dict.fromkeys(self.names, 0.0)
        self.differences = [0.0]
        self._open: deque[tuple[Ticket, int]] = deque()
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
        ticket = door.enter(self._size(self.kinds[number], LONGEST), name=name)
        if ticket in door.leases:
            self._open.append((ticket, self._answer_of(ticket)))
        else:
            self._waiting[name] += 1

    def _serve(self) -> None:
        """One has its first token and later its answer, and others are sent for it."""
        door = self.door
        self._open.rotate(self.rng.randrange(len(self._open)))
        ticket, tokens = self._open.popleft()
        name = ticket.name
        door.first(ticket, 0.0)
        self.given[name] += ticket.ask.prompt_tokens
        self._note()
        for _ in range(8):
            part = -(-tokens // 8)
            door.leases[ticket].tokens(part)
            self.given[name] += 2 * part
            self._note()
        door.leases[ticket].complete(0.0)
        for other in door.wake(0.0):
            self._open.append((other, self._answer_of(other)))
            self._waiting[other.name] -= 1

    def _answer_of(self, ticket: Ticket) -> int:
        return self._size(self.answers[self.names.index(ticket.name)], LONGEST_ANSWER)

    def _note(self) -> None:
        first, second = self.names[0], self.names[1]
        self.differences.append(
            self.given[first] / self.weights[first] - self.given[second] / self.weights[second]
        )


def spread(differences: Sequence[float]) -> float:
    """The largest difference over any interval."""
    return max(differences) - min(differences)


@cache
def spreads(weights: tuple[float, float]) -> list[tuple[float, float, float]]:
    """Of 150 walks: while the lengths of answers are learnt, and over two equal parts later."""
    found = []
    for seed in range(150):
        served, ends = Served(seed, weights), []
        for _ in range(3):
            served.run(90)
            ends.append(len(served.differences))
        first, second, third = ends
        parts = served.differences[:first], served.differences[first:second]
        found.append((spread(parts[0]), spread(parts[1]), spread(served.differences[second:third])))
        assert spread(served.differences[first:]) <= BOUND, seed
    return found


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 3.0)])
def test_over_any_interval_they_are_given_the_same_by_weight(weights: tuple[float, float]) -> None:
    """Until the first answers are whole, a dozen requests are charged too little."""
    assert max(learning for learning, _, _ in spreads(weights)) <= 2 * BOUND


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 3.0)])
def test_the_difference_does_not_grow(weights: tuple[float, float]) -> None:
    found = spreads(weights)
    assert fmean(after for _, _, after in found) <= 1.1 * fmean(before for _, before, _ in found)


@pytest.mark.parametrize("seed", range(3))
def test_the_difference_does_not_grow_in_the_long_run(seed: int) -> None:
    served = Served(seed, (1.0, 3.0))
    served.run(1_500)
    assert spread(served.differences) <= BOUND
    assert min(served.given.values()) > 3 * BOUND


# A client that changes its name ------------------------------------------------------------

FLOWS = 4


def share_of_honest(names: Sequence[str]) -> float:
    """The share of one that keeps to its name, of two always waiting, beside a flood of these."""
    door, rng = Door("a", "b"), Random(1)
    given = {True: 0, False: 0}
    number = 0
    open_: deque[Ticket] = deque()
    waiting: Counter[bool] = Counter()
    for step in range(600):
        while waiting[True] < 2 or waiting[False] < 40:
            is_honest = waiting[True] < 2
            ticket = door.enter(2_000, name="honest" if is_honest else names[number % len(names)])
            number += not is_honest
            if ticket in door.leases:
                open_.append(ticket)
            else:
                waiting[is_honest] += 1
        open_.rotate(rng.randrange(len(open_)))
        ticket = open_.popleft()
        door.finish(ticket, 0.0, 50)
        if step >= 100:
            given[ticket.name == "honest"] += ticket.ask.prompt_tokens
        for sent in door.wake(0.0):
            open_.append(sent)
            waiting[sent.name == "honest"] -= 1
    return given[True] / sum(given.values())


def test_with_few_flows_a_new_name_for_each_request_gains_nothing() -> None:
    """It has as many flows as one that has as many names: no more."""
    hashed = [f"queue {crc32(f'{number}'.encode()) % FLOWS}" for number in range(5_000)]
    kept = share_of_honest([f"queue {number}" for number in range(FLOWS)])
    assert share_of_honest(hashed) == pytest.approx(kept, 0.05)
    assert kept == pytest.approx(1 / (FLOWS + 1), 0.1)


def test_with_a_flow_for_each_name_it_would() -> None:
    assert share_of_honest([f"{number}" for number in range(5_000)]) < 0.1


# A flood -----------------------------------------------------------------------------------


def test_behind_a_thousand_of_one_flow_another_flow_is_among_the_next_two() -> None:
    door = Door("a", "b")
    flood = [door.enter(2_500, name="flood") for _ in range(1_000)]
    under_way = deque(ticket for ticket in flood if ticket in door.leases)
    for _ in range(30):
        door.finish(under_way.popleft(), 0.0, 10)
        under_way.extend(door.wake(0.0))
    ticket = door.enter(2_500, name="other")
    assert ticket.waits
    sent: list[Ticket] = []
    while len(sent) < 2:
        door.finish(under_way.popleft(), 0.0, 10)
        sent += door.wake(0.0)
        under_way.extend(sent)
    assert ticket in sent[:2]


def test_an_answer_without_an_end_is_charged_while_it_goes_on() -> None:
    door = Door("a")
    endless = door.enter(100, name="endless")
    door.first(endless, 0.1)
    door.enter(FILLS, 0.1, name="other")
    assert door.enter(FILLS, 0.1, name="endless").waits
    door.leases[endless].tokens(10_000)
    door.wake(0.5)
    assert endless.flow.served == 100 + 2 * 10_000
    door.leases[endless].end(0.6)
    assert endless.flow.served == 100 + 2 * 10_000


def test_a_weight_below_one_is_charged_more() -> None:
    flow = Flow("a", 1, 0.5)
    flow.charge(100.0, 0.0)
    assert flow.served == 200.0
