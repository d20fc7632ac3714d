"""The counts of a queue, and what is ahead of a new request."""

from random import Random

import pytest

from penstock.balancing.admission.queue import Queue
from penstock.balancing.admission.ticket import Flow, Ticket
from tests.unit.balancing.admission.lines import send, send_next, waiting, weighted


def check(queue: Queue, flows: list[Flow], tickets: set[Ticket]) -> None:
    """All counts are those of the tickets."""
    assert queue.waiting == len(tickets)
    for rank, backlog in enumerate(queue.backlogs):
        assert set(backlog) == {flow for flow in flows if flow.queues[rank]}
        for flow in flows:
            mine = {each for each in tickets if (each.flow, each.rank) == (flow, rank)}
            assert set(flow.queues[rank]) == mine
            assert flow.queued_tokens[rank] == sum(each.tokens for each in mine)
    assert all(each.waits for each in tickets)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_and_goes_the_counts_are_those_of_what_waits(seed: int) -> None:
    rng = Random(seed)
    queue = Queue((0.0, 0.1, 0.05))
    flows = [weighted(queue, name, rng.choice([0.5, 1.0, 3.0])) for name in "abcd"]
    tickets: set[Ticket] = set()
    for _ in range(300):
        kind = rng.randrange(5)
        if kind < 2 or not tickets:
            flow, tokens = rng.choice(flows), rng.randint(1, 5_000)
            first = rng.random() < 0.2
            tickets.add(waiting(queue, flow, tokens, rng.randrange(3), first=first))
        elif kind == 2:
            ticket = rng.choice(sorted(tickets, key=lambda each: (each.tokens, id(each))))
            tickets.remove(ticket)
            queue.remove(ticket)
            assert not ticket.waits
        else:
            tickets.remove(send_next(queue))
        check(queue, flows, tickets)
    for ticket in list(tickets):
        queue.remove(ticket)
    check(queue, flows, set())


def test_a_name_has_one_flow_and_its_last_weight() -> None:
    queue = Queue((0.0,))
    queue.weigh({"a": 2.0})
    flow = queue.flow("a")
    assert (flow.weight, queue.flow("b").weight) == (2.0, 1.0)
    queue.weigh({"b": 5.0})
    assert queue.flow("a") is flow
    assert (flow.weight, queue.flow("b").weight) == (1.0, 5.0)


# What is ahead -----------------------------------------------------------------------------


def sent_before(queue: Queue, flow: Flow, tokens: int, rank: int) -> int:
    """The tokens that are sent before a new request of this flow and class."""
    new = waiting(queue, flow, tokens, rank)
    ahead = 0
    while (ticket := send_next(queue)) is not new:
        ahead += ticket.tokens
    return ahead


@pytest.mark.parametrize("seed", range(30))
def test_what_is_ahead_is_what_is_sent_before(seed: int) -> None:
    """Exactly, where all requests are as large and each flow has one class."""
    rng = Random(seed)
    queue = Queue((0.0, 0.0))
    flows = [queue.flow(name) for name in "abcdef"]
    for number, flow in enumerate(flows[:-1]):
        for _ in range(rng.randrange(12)):
            waiting(queue, flow, 100, number % 2)
    rank = rng.randrange(2)
    expected = queue.ahead_tokens(flows[-1], rank, 100)
    assert expected == sent_before(queue, flows[-1], 100, rank)


@pytest.mark.parametrize("seed", range(60))
def test_of_each_other_flow_it_is_off_by_a_request_at_most(seed: int) -> None:
    rng = Random(seed)
    queue, longest = Queue((0.0, 0.0)), 2_000
    flows = [weighted(queue, str(i), rng.choice([0.5, 1.0, 3.0])) for i in range(6)]
    for flow in flows:
        flow.charge(rng.randint(0, 20_000), 0.0)
    for _ in range(200):
        number = rng.randrange(6)
        waiting(queue, flows[number], rng.randint(1, longest), number % 2)
    number, tokens = rng.randrange(6), rng.randint(1, longest)
    flow, rank = flows[number], number % 2
    expected = queue.ahead_tokens(flow, rank, tokens)
    others = [other for other in queue.backlogs[rank] if other is not flow]
    slack = sum(longest + tokens * other.weight / flow.weight for other in others)
    assert abs(expected - sent_before(queue, flow, tokens, rank)) <= slack


def test_nothing_of_a_lower_class_is_ahead() -> None:
    queue = Queue((0.0, 0.0))
    low, high = queue.flow("low"), queue.flow("high")
    for _ in range(5):
        waiting(queue, low, 1_000, 1)
    assert queue.ahead_tokens(high, 0, 100) == 0.0
    assert queue.ahead_tokens(low, 0, 100) == 0.0
    assert queue.ahead_tokens(high, 1, 100) > 0.0


def test_of_a_flood_only_as_much_is_ahead_as_passes_by_turns() -> None:
    queue = Queue((0.0,))
    flood, other = queue.flow("flood"), queue.flow("other")
    for _ in range(1_000):
        waiting(queue, flood, 100)
    assert queue.ahead_tokens(other, 0, 100) == 100.0
    assert queue.ahead_tokens(flood, 0, 100) == 100_000.0


def test_to_ask_what_is_ahead_changes_nothing() -> None:
    queue = Queue((0.0,))
    steady, away = queue.flow("steady"), queue.flow("away")
    for _ in range(3):
        send(queue, waiting(queue, steady, 100))
    waiting(queue, steady, 100)
    before = (away.served, steady.served, queue.waiting)
    queue.ahead_tokens(away, 0, 100)
    assert (away.served, steady.served, queue.waiting) == before


def test_one_of_a_thousand_of_a_flood_and_one_of_another_flow_are_the_next_two() -> None:
    queue = Queue((0.0,))
    flood, other = queue.flow("flood"), queue.flow("other")
    for _ in range(1_000):
        waiting(queue, flood, 100)
    for _ in range(100):
        send_next(queue)
    ticket = waiting(queue, other, 100)
    assert ticket in (send_next(queue), send_next(queue))
