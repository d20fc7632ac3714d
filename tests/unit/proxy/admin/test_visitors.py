"""Connections to the admin port: how many there may be, and who gives way."""

import asyncio

import pytest

from penstock.proxy.admin.visitors import HEAD_S, REQUEST_S, VISITORS_MAX, Visitors
from tests.unit.proxy.timers import Timers
from tests.unit.proxy.wire.transport import Notes, Transport


class Door(Timers):
    """A port with a clock of the test's."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers: list[Notes] = []
        self.visitors = Visitors(self._handler, self.call_later)

    def come(self, address: str = "") -> tuple[asyncio.Protocol, Transport]:
        visitor, transport = self.visitors(), Transport(address)
        visitor.connection_made(transport)
        return visitor, transport

    def wait(self, time_s: float) -> None:
        self.to(self.now_s + time_s)

    def _handler(self) -> Notes:
        self.handlers.append(Notes())
        return self.handlers[-1]


def test_the_longest_idle_gives_way() -> None:
    door = Door()
    _, first = door.come()
    door.visitors.begin(door.handlers[0])
    _, second = door.come()
    others = [door.come()[1] for _ in range(VISITORS_MAX - 2)]
    assert not any(each.closed for each in (first, second, *others))
    _, newest = door.come()
    assert [first.closed, second.closed, newest.closed] == [False, True, False]
    door.visitors.end(door.handlers[0])  # idle, but not for the longest time
    door.come()
    assert (first.closed, others[0].closed) == (False, True)
    for _ in range(1_000):
        door.come()
    assert len(door.visitors._all) == VISITORS_MAX


def ask(door: Door, address: str = "") -> Transport:
    """A connection whose request has come and is not answered yet."""
    _, transport = door.come(address)
    door.visitors.begin(door.handlers[-1])
    return transport


def test_where_all_ask_the_address_with_the_most_gives_way() -> None:
    """Its longest asking one. A probe from there is answered before its turn comes."""
    door = Door()
    probe = ask(door, "192.0.2.1")
    crowd = [ask(door, "192.0.2.7") for _ in range(VISITORS_MAX - 1)]
    other = ask(door, "192.0.2.2")
    assert [each.closed for each in (probe, other, *crowd[:2])] == [False, False, True, False]
    own = ask(door, "192.0.2.7")
    for _ in range(30):
        ask(door, "192.0.2.7")
    assert not any(each.closed for each in (probe, other, own))
    assert sum(each.closed for each in crowd) == 32
    assert len(door.visitors._all) == VISITORS_MAX
    door.wait(REQUEST_S)
    assert probe.closed
    assert len(door.visitors._all) == 0


def test_an_address_with_few_connections_keeps_them() -> None:
    door = Door()
    _, idle = door.come("192.0.2.1")
    for _ in range(200):
        door.come("192.0.2.7")
    assert not idle.closed
    _, other = door.come("192.0.2.2")
    assert not idle.closed
    assert not other.closed


def test_what_stays_gives_way_to_nobody() -> None:
    door = Door()
    streams = [ask(door) for _ in range(VISITORS_MAX)]
    for handler in door.handlers:
        door.visitors.stay(handler)
    visitor, newest = door.come()
    assert newest.closed
    visitor.data_received(b"GET / HTTP/1.1\r\n\r\n")
    visitor.connection_lost(None)
    assert len(door.handlers) == len(door.visitors._all) == VISITORS_MAX
    assert not any(each.closed for each in streams)


@pytest.mark.parametrize("begun", [b"", b"GET / HTT"])
def test_a_head_must_come_soon(begun: bytes) -> None:
    door = Door()
    visitor, transport = door.come()
    door.wait(HEAD_S / 2)
    if begun:
        visitor.data_received(begun)
    door.wait(HEAD_S / 2)
    assert transport.closed


def test_one_that_has_asked_may_rest_and_ask_again() -> None:
    door = Door()
    visitor, transport = door.come()
    (handler,) = door.handlers
    for _ in range(3):
        visitor.data_received(b"GET /metrics HTTP/1.1\r\n\r\n")
        door.visitors.begin(handler)
        door.visitors.end(handler)
        door.wait(60.0)
    assert len(door.visitors._all) == 1
    visitor.data_received(b"GET")
    door.wait(HEAD_S)
    assert transport.closed
    visitor.connection_lost(None)
    assert (handler.seen[0], handler.seen[-1]) == ("made", "lost")
