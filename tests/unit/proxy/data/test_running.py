"""While the loop is late, who has few requests under way is still served."""

import pytest

from penstock.proxy.data.overload import Running
from tests.unit.proxy.data.playbook import Play, chat


@pytest.mark.parametrize(
    ("held", "holder", "spared"),
    [
        ({}, "a", False),
        ({"a": 1_000}, "a", False),  # nobody else can be the cause
        ({"a": 1_000}, "b", True),
        ({"a": 1_000, "b": 100}, "b", True),
        ({"a": 1_000, "b": 600}, "b", False),
        ({"a": 1}, "b", False),
        ({str(number): 10 for number in range(50)}, "7", False),  # all alike
        ({str(number): 10 for number in range(50)}, "new", True),
        ({str(number): 1 for number in range(500)}, "new", False),  # many addresses
    ],
)
def test_who_is_spared(held: dict[str, int], holder: str, spared: bool) -> None:
    running = Running()
    for name, requests in held.items():
        for _ in range(requests):
            running.begin(name, 0.0)
    assert running.spares(holder) is spared
    for name, requests in held.items():
        for _ in range(requests):
            running.end(name)
    running.begin("another", 5.0)  # so that those before are not lately
    running.end("another")
    assert not running.spares(holder)


def test_requests_that_end_at_once_count_for_a_moment() -> None:
    running = Running()
    for number in range(200):
        running.begin(str(number % 20), 0.0)
    for _ in range(1_000):
        running.begin("flood", 0.5)
        running.end("flood")
    assert not running.spares("flood")
    assert running.spares("3")
    running.begin("3", 1.5)
    assert not running.spares("flood")
    running.begin("3", 4.0)
    assert running.spares("flood")


def test_requests_count_from_their_beginning_to_their_end() -> None:
    play = Play()
    for _ in range(8):
        play.plane.running.begin("192.0.2.99", play.plane.now())
    play.client.sends(chat())
    play.plane.overload.reason = "lag"
    other = play.connects()
    other.sends(chat())
    assert play.happened()[-1] == "b2 got POST"
    for _ in range(7):
        play.plane.running.end("192.0.2.99")
    play.passes(3.0)
    third = play.connects()
    third.sends(chat())
    assert "client got 429, overloaded" in " ".join(play.happened())
    for name in ("b1", "b2"):
        play.answers(name)
    play.plane.running.end("192.0.2.99")
    assert not play.plane.running._running
