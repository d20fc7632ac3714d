"""Who is next: by class, in a class by what each flow was given, in a flow by arrival."""

from random import Random

import pytest

from penstock.balancing.admission.queue import Queue
from penstock.balancing.admission.ticket import Ticket
from tests.unit.balancing.admission.lines import ready, send, send_next, turns, waiting, weighted


def sent_in_turn(queue: Queue) -> list[Ticket]:
    return [send_next(queue) for _ in range(queue.waiting)]


def test_in_a_flow_they_go_in_the_order_of_arrival() -> None:
    queue = Queue((0.0,))
    flow = queue.flow("a")
    tickets = [waiting(queue, flow, tokens) for tokens in (500, 1, 90, 1_000)]
    assert sent_in_turn(queue) == tickets


def test_one_that_its_client_asks_for_again_is_before_the_others_of_its_flow() -> None:
    queue = Queue((0.0, 0.0))
    flow = queue.flow("a")
    high = waiting(queue, flow, 10)
    low = waiting(queue, flow, 10, 1)
    again = waiting(queue, flow, 10, 1, first=True)
    assert sent_in_turn(queue) == [high, again, low]


def test_a_class_is_served_before_all_lower_ones() -> None:
    queue = Queue((0.0, 0.0, 0.0))
    rng = Random(1)
    flows = [queue.flow(name) for name in "abc"]
    for flow in flows:
        flow.charge(rng.randint(0, 10_000), 0.0)
    for _ in range(90):
        waiting(queue, rng.choice(flows), rng.randint(1, 1_000), rng.randrange(3))
    ranks = [ticket.rank for ticket in sent_in_turn(queue)]
    assert ranks == sorted(ranks)


@pytest.mark.parametrize("sizes", [(100, 100), (50, 5_000), (5_000, 50)])
def test_a_lower_class_has_its_share_while_the_upper_one_never_ends(
    sizes: tuple[int, int],
) -> None:
    queue, rng, flows = Queue((0.0, 0.1)), Random(3), []
    given = [0, 0]
    for rank, size in enumerate(sizes):
        flows.append(queue.flow(f"{rank}"))
        for _ in range(5):
            waiting(queue, flows[rank], rng.randint(1, 2 * size), rank)
    while sum(given) < 400 * max(sizes):
        ticket = send_next(queue)
        given[ticket.rank] += ticket.tokens
        waiting(queue, ticket.flow, rng.randint(1, 2 * sizes[ticket.rank]), ticket.rank)
    assert 0.09 <= given[1] / sum(given) <= 0.11


def test_a_share_of_a_half_is_a_half() -> None:
    queue, given = Queue((0.0, 0.5)), [0, 0]
    for rank in (0, 1):
        for _ in range(3):
            waiting(queue, queue.flow(f"{rank}"), 100, rank)
    for _ in range(1_000):
        ticket = send_next(queue)
        given[ticket.rank] += ticket.tokens
        waiting(queue, ticket.flow, 100, ticket.rank)
    assert given[1] / sum(given) == pytest.approx(0.5, 0.02)


@pytest.mark.parametrize(("waits_tokens", "first"), [(10, 5), (40_000, 13), (500_000, 22)])
def test_one_that_cannot_go_saves_little_up_for_others_of_its_class(
    waits_tokens: int, first: int
) -> None:
    """As much as itself at most, if it is large, and never more than is enough for any."""
    queue = Queue((0.0, 0.1))
    waiting(queue, queue.flow("low"), waits_tokens, 1)
    for _ in range(100):
        send(queue, waiting(queue, queue.flow("high"), 50_000))
    low = [waiting(queue, queue.flow("low"), 2_900, 1) for _ in range(80)]
    for number, ticket in enumerate(low):
        if not queue.is_owed(ticket):
            assert number == first
            return
        send(queue, ticket)
    raise AssertionError


def test_one_that_cannot_go_keeps_none_behind_it_from_what_it_is_owed() -> None:
    queue = Queue((0.0, 0.1))
    waiting(queue, queue.flow("low"), 10, 1)
    large = waiting(queue, queue.flow("low"), 40_000, 1)
    for _ in range(100):
        send(queue, waiting(queue, queue.flow("high"), 50_000))
    assert queue.is_owed(large)
    queue.remove(large)
    send(queue, waiting(queue, queue.flow("high"), 100))
    assert not queue.is_owed(waiting(queue, queue.flow("low"), 20_000, 1))


def test_a_lower_class_is_owed_nothing_for_the_time_when_none_of_it_waited() -> None:
    queue = Queue((0.0, 0.5))
    high, low = queue.flow("high"), queue.flow("low")
    for _ in range(100):
        waiting(queue, high, 1_000)
    for _ in range(50):
        send_next(queue)
    late = waiting(queue, low, 100, 1)
    assert send_next(queue).rank == 0
    assert send_next(queue) is late
    for _ in range(10):
        send_next(queue)
    waiting(queue, low, 100, 1)  # what it was owed has gone with its last request
    assert send_next(queue).rank == 0


def test_the_flow_that_was_given_least_is_next() -> None:
    queue = Queue((0.0,))
    first, second = queue.flow("first"), queue.flow("second")
    for _ in range(30):
        waiting(queue, first, 300)
        waiting(queue, second, 100)
    tokens = {first: 0, second: 0}
    for _ in range(30):
        ticket = send_next(queue)
        tokens[ticket.flow] += ticket.tokens
        assert abs(tokens[first] - tokens[second]) <= 300


def test_a_flow_that_was_away_saves_nothing_up() -> None:
    queue = Queue((0.0,))
    steady, away = queue.flow("steady"), queue.flow("away")
    for _ in range(300):
        waiting(queue, steady, 100)
    for _ in range(200):
        send_next(queue)
    for _ in range(100):
        waiting(queue, away, 100)
    of_away = sum(send_next(queue).flow is away for _ in range(40))
    assert 19 <= of_away <= 21


def test_a_flow_that_comes_when_nothing_waits_saves_nothing_up_either() -> None:
    queue = Queue((0.0,))
    steady, away = queue.flow("steady"), queue.flow("away")
    for _ in range(200):
        waiting(queue, steady, 100)
        send_next(queue)
    for _ in range(50):  # now both come at once
        waiting(queue, away, 100)
        waiting(queue, steady, 100)
    of_away = sum(send_next(queue).flow is away for _ in range(40))
    assert 19 <= of_away <= 22


def test_a_flow_that_comes_back_keeps_what_it_was_given_too_much() -> None:
    queue = Queue((0.0,))
    greedy, other = queue.flow("greedy"), queue.flow("other")
    send(queue, waiting(queue, greedy, 5_000))
    for _ in range(60):
        waiting(queue, greedy, 100)
        waiting(queue, other, 100)
    other.served = 0.0
    greedy.served = 5_000.0
    assert all(send_next(queue).flow is other for _ in range(50))


def test_turns_are_the_order_in_which_they_would_be_sent() -> None:
    rng = Random(5)
    for _ in range(50):
        queue = Queue((0.0,))
        flows = [weighted(queue, f"{weight}", weight) for weight in (1.0, 2.0, 0.5)]
        for _ in range(20):
            waiting(queue, rng.choice(flows), rng.randint(1, 500))
        expected = turns(queue, 0, 12)
        assert expected == [send_next(queue) for _ in range(12)]


def test_turns_name_nobody_twice_and_no_more_than_there_are() -> None:
    queue = Queue((0.0,))
    flow = queue.flow("a")
    tickets = [waiting(queue, flow, 10) for _ in range(3)]
    assert turns(queue, 0, 8) == tickets
    assert turns(queue, 0, 2) == tickets[:2]


def test_a_flow_whose_requests_find_no_room_leaves_the_others_their_turns() -> None:
    queue = Queue((0.0,))
    large, small = queue.flow("large"), queue.flow("small")
    small.charge(50.0, 0.0)
    for _ in range(10):
        waiting(queue, large, 30_000)
        waiting(queue, small, 100)
    flows = [ticket.flow for ticket in turns(queue, 0, 8)]
    assert flows[0] is large
    assert flows.count(small) >= 6


def test_what_no_open_backend_may_serve_stands_in_nobodys_way() -> None:
    queue, closed = Queue((0.0,)), ready("closed")
    for number in range(20):
        waiting(queue, queue.flow(f"{number}"), 100).only = closed
    bound, other = queue.flow("0"), queue.flow("other")
    other.charge(50.0, 0.0)
    free = [waiting(queue, bound, 100), waiting(queue, other, 100)]
    assert turns(queue, 0, 8) == free
    assert len(queue.turns(0, 8, [closed])) == 8


@pytest.mark.parametrize("weights", [(1.0, 3.0), (0.5, 2.0)])
def test_a_flow_has_tokens_by_its_weight(weights: tuple[float, float]) -> None:
    queue, rng = Queue((0.0,)), Random(7)
    flows = [weighted(queue, f"{weight}", weight) for weight in weights]
    given = dict.fromkeys(flows, 0)
    for flow in flows * 3:
        waiting(queue, flow, rng.randint(1, 1_000))
    for _ in range(3_000):
        ticket = send_next(queue)
        given[ticket.flow] += ticket.tokens
        waiting(queue, ticket.flow, rng.randint(1, 1_000))
    assert given[flows[1]] / given[flows[0]] == pytest.approx(weights[1] / weights[0], 0.01)
