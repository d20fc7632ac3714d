"""What is charged for answers before they come, and what comes back of it."""

import pytest

from penstock.balancing.admission.queue import ANSWER_WEIGHT, Queue
from penstock.balancing.admission.ticket import Ticket
from tests.unit.balancing.admission.lines import FILLS, Door, waiting, weighted


def with_answers(door: Door, tokens: int) -> None:
    """The tenant "long" has had such answers."""
    for _ in range(5):
        door.finish(door.enter(10, 0.0, name="long"), 0.0, tokens)


def running(door: Door, count: int) -> list[Ticket]:
    """So many of its requests are sent, of which each is charged for such an answer."""
    tickets = [door.enter(10, 1.0, name="long") for _ in range(count)]
    assert all(ticket in door.leases for ticket in tickets)
    return tickets


def test_who_comes_is_lifted_as_if_the_answers_of_others_ended_now() -> None:
    queue = Queue((0.0,))
    flow = weighted(queue, "long", 2.0)
    flow.served, flow.ahead_tokens = 1_000.0, 600.0
    waiting(queue, flow, 10)
    other = queue.flow("other")
    waiting(queue, other, 10)
    assert other.served == 1_000.0 - 600.0 / 2.0


def test_so_is_who_comes_when_they_wait_no_more() -> None:
    queue = Queue((0.0,))
    flow = queue.flow("long")
    flow.served, flow.ahead_tokens = 1_000.0, 600.0
    queue.remove(waiting(queue, flow, 10))
    other = queue.flow("other")
    waiting(queue, other, 10)
    assert other.served == 400.0


def test_what_was_charged_beforehand_becomes_what_came() -> None:
    door = Door("a")
    with_answers(door, 500)
    ticket = running(door, 1)[0]
    flow = ticket.flow
    assert flow.ahead_tokens == pytest.approx(ANSWER_WEIGHT * 500)
    door.first(ticket, 1.0)
    door.enter(FILLS, 1.0, name="long")
    door.enter(FILLS, 1.0, name="long")  # waits, so the streams are looked at
    before, charged = flow.ahead_tokens, flow.served
    door.leases[ticket].tokens(200)
    door.wake(1.2)
    assert flow.ahead_tokens == pytest.approx(before - ANSWER_WEIGHT * 200)
    assert flow.served == charged
    door.leases[ticket].tokens(400)
    door.wake(1.4)
    assert flow.ahead_tokens == pytest.approx(before - ANSWER_WEIGHT * 500)
    assert flow.served == pytest.approx(charged + ANSWER_WEIGHT * 100)


@pytest.mark.parametrize("stream", [True, False])
def test_nothing_stays_when_they_have_ended(stream: bool) -> None:
    door = Door("a")
    with_answers(door, 500)
    whole, left = (door.enter(10, 1.0, name="long", stream=stream) for _ in range(2))
    flow = whole.flow
    assert flow.ahead_tokens == pytest.approx(2 * ANSWER_WEIGHT * 500)
    door.finish(whole, 2.0, tokens=700)
    door.leases[left].end(3.0)
    assert flow.ahead_tokens == pytest.approx(0.0)


def test_who_leaves_its_answers_goes_before_nobody_that_waits() -> None:
    """The other came while they were charged, and was lifted."""
    door = Door("a")
    with_answers(door, 500)
    tickets = running(door, 20)
    for ticket in tickets:
        door.first(ticket, 1.0)
    door.enter(FILLS, 1.1, name="long")
    more = [door.enter(100, 1.2, name="long") for _ in range(5)]
    victim = door.enter(100, 1.3, name="victim")
    assert victim.waits
    assert all(ticket.waits for ticket in more)
    for ticket in tickets:
        door.leases[ticket].end(1.4)
    door.open_up(1.5)
    assert door.wake(1.5)[0] is victim
