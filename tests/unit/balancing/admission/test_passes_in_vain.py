"""Passes whose last look was in vain: they take no turns with the others."""

from collections.abc import Callable
from math import inf

import pytest

from penstock.balancing.admission.held import TURNS_MAX
from penstock.balancing.admission.passes import REFUSED_MAX, Passes
from penstock.balancing.admission.queue import Queue
from penstock.balancing.admission.ticket import Ticket
from penstock.balancing.ask import Ask
from tests.unit.balancing.admission.lines import waiting


def test_a_wake_looks_at_few_that_would_be_refused() -> None:
    queue = Queue((0.0,))
    passes, flow = Passes(queue, TURNS_MAX), queue.flow("x")
    those = [waiting(queue, flow, 1) for _ in range(2 * REFUSED_MAX)]
    for part in (those[:REFUSED_MAX], those[REFUSED_MAX:]):
        passes.begin(0.0)
        found = []
        while (ticket := passes.next()) is not None:
            found.append(ticket)
            passes.found_refusal(ticket)
        assert found == part


def test_those_that_would_be_refused_keep_others_from_few_looks() -> None:
    """As many flows as there are, in one class and in a lower one."""
    queue = Queue((0.0, 0.0))
    passes = Passes(queue, TURNS_MAX)
    refused = set()
    for number in range(200):
        flow = queue.flow(f"{number}")
        refused |= {waiting(queue, flow, 1, number % 2) for _ in range(4)}
    goes = [waiting(queue, queue.flow("victim"), 1) for _ in range(20)]
    wakes = 0
    while any(each.waits for each in goes):
        wakes += 1
        passes.begin(float(wakes))
        while (ticket := passes.next()) is not None:
            if ticket in refused:
                ticket.stays_until_s = wakes + 10.0
                passes.found_refusal(ticket)
            else:
                queue.remove(ticket)
                passes.found_place()
    assert wakes < 40


def test_one_that_would_be_refused_at_first_is_looked_at_again_beside_others_that_go() -> None:
    queue = Queue((0.0,))
    passes = Passes(queue, TURNS_MAX)
    patient = waiting(queue, queue.flow("x"), 1)
    for wake in range(4):
        for _ in range(2 * TURNS_MAX):
            waiting(queue, queue.flow("y"), 1)
        passes.begin(float(wake))
        found = []
        while (ticket := passes.next()) is not None:
            found.append(ticket)
            if ticket is patient:
                ticket.stays_until_s = wake + 1.0
                passes.found_refusal(ticket)
        assert patient in found


def test_those_that_find_no_place_keep_others_from_few_looks() -> None:
    queue = Queue((0.0, 0.0))
    passes = Passes(queue, TURNS_MAX)
    for number in range(200):
        waiting(queue, queue.flow(f"{number}"), 1, number % 2)
    goes = [waiting(queue, queue.flow("victim"), 1) for _ in range(100)]
    assert wakes_until_all_went(queue, passes, goes) <= 3


@pytest.mark.parametrize(("most_turns", "most_wakes"), [(TURNS_MAX, 4), (16, 25)])
def test_nor_if_they_come_anew_with_each_wake(most_turns: int, most_wakes: int) -> None:
    """With few turns a pass begins when all that it was to look at has left."""
    queue = Queue((0.0,))
    passes = Passes(queue, most_turns)
    flows = [queue.flow(f"{number}") for number in range(200)]
    others = [waiting(queue, flow, 1) for flow in flows]
    goes = [waiting(queue, queue.flow("victim"), 1) for _ in range(30)]

    def come_anew() -> None:
        for number, each in enumerate(others):
            queue.remove(each)
            others[number] = waiting(queue, flows[number], 1)

    assert wakes_until_all_went(queue, passes, goes, come_anew) <= most_wakes


@pytest.mark.parametrize(("stays_until_s", "order"), [(1.0, "abba"), (-inf, "abab")])
def test_one_that_was_to_stay_and_has_left_went_nowhere(stays_until_s: float, order: str) -> None:
    queue = Queue((0.0,))
    passes = Passes(queue, TURNS_MAX)
    a = [waiting(queue, queue.flow("a"), 1) for _ in range(3)]
    passes.begin(0.0)
    assert passes.next() is a[0]
    passes.found_refusal(a[0])
    a[0].stays_until_s = stays_until_s
    queue.remove(a[0])
    for _ in range(2):
        waiting(queue, queue.flow("b"), 1)
    passes.begin(0.5)
    assert names_of_next(passes, 4) == order


@pytest.mark.parametrize(("away_s", "order"), [(9.0, "abba"), (11.0, "baba")])
def test_that_its_last_look_was_in_vain_is_remembered_for_some_time(
    away_s: float, order: str
) -> None:
    queue = Queue((0.0,))
    passes = Passes(queue, TURNS_MAX)
    a, b = queue.flow("a"), queue.flow("b")
    gone = waiting(queue, a, 1)
    passes.begin(0.0)
    assert passes.next() is gone
    passes.found_nothing(gone)
    queue.remove(gone)
    for flow in (b, a):
        for _ in range(2):
            waiting(queue, flow, 1)
    passes.begin(away_s)
    assert names_of_next(passes, 4) == order


def test_and_for_as_long_as_something_of_it_waits() -> None:
    queue = Queue((0.0,))
    passes = Passes(queue, TURNS_MAX)
    a = [waiting(queue, queue.flow("a"), 1) for _ in range(3)]
    for number, ticket in enumerate(a):
        ticket.ask = Ask("/", model=f"m{number}")
    passes.begin(0.0)
    assert passes.next() is a[0]
    passes.found_nothing(a[0])
    b = [waiting(queue, queue.flow("b"), 1) for _ in range(2)]
    for at_s in (8.0, 16.0):
        passes.begin(at_s)
    assert [passes.next() for _ in range(4)] == [a[1], b[0], b[1], a[2]]


def names_of_next(passes: Passes, number: int) -> str:
    """The names of the flows that have so many looks."""
    found = [passes.next() for _ in range(number)]
    return "".join(each.flow.name for each in found if each is not None)


def wakes_until_all_went(
    queue: Queue, passes: Passes, goes: list[Ticket], between: Callable[[], object] = list
) -> int:
    """How many wakes find a place for all these. There is none for others."""
    for wakes in range(100):
        if not any(each.waits for each in goes):
            return wakes
        passes.begin(float(wakes))
        while (ticket := passes.next()) is not None:
            if ticket in goes:
                queue.remove(ticket)
                passes.found_place()
            else:
                passes.found_nothing(ticket)
        between()
    return 100
