"""What waits to be sent: bounded, and shared between those whose requests are traced."""

from penstock.proxy.tracing.span import Waiting
from tests.unit.proxy.tracing.spans import finished, served


def test_the_oldest_are_taken_first_and_whole() -> None:
    waiting = Waiting(100)
    requests = [finished(served(failures=1), owner=str(number)) for number in range(4)]
    assert [waiting.put(each) for each in requests] == [True] * 4
    assert waiting.spans == 12
    assert waiting.take(4) == requests[:2]
    assert waiting.spans == 6
    assert waiting.take(100) == requests[2:]
    assert (waiting.spans, waiting.take(100)) == (0, [])


def test_one_client_gets_half_and_leaves_room_for_the_others() -> None:
    waiting = Waiting(100)
    while waiting.put(finished(served(), owner="attacker")):
        pass
    assert waiting.spans == 50
    assert waiting.put(finished(served(), owner="victim"))
    while waiting.put(finished(served(), owner="victim")):
        pass
    assert waiting.spans <= 76
    assert waiting.put(finished(served(), owner="third"))


def test_the_bound_holds_for_any_number_of_clients() -> None:
    waiting = Waiting(100)
    for number in range(500):
        waiting.put(finished(served(failures=number % 5), owner=str(number)))
    assert waiting.spans <= 100


def test_what_was_taken_counts_no_more() -> None:
    waiting = Waiting(8)
    for _ in range(50):
        assert waiting.put(finished(served()))
        waiting.take(2)
    assert waiting.spans == 0
    assert not waiting._by_client
