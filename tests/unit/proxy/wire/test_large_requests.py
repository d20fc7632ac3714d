"""A large request on a connection: paused at any moment, and let go with the connection."""

import gc
import sys
from typing import Any

import pytest

from penstock.proxy.errors.backend import ConnectionReset
from penstock.proxy.wire.pieces import PIECE_BYTES
from tests.unit.proxy.wire.test_connection import WHOLE, Link

SIZE_BYTES = 8 * PIECE_BYTES


def send(link: Link, body: bytes) -> None:
    link.connection.send(b"HEAD", body, link.sink, method=b"POST", sender="a")


def test_a_backend_that_takes_no_more_during_the_first_write_is_sent_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a small send buffer the transport pauses its protocol inside the first write."""
    link = Link()
    write = link.transport.write

    def write_and_pause(data: Any) -> None:
        write(data)
        link.connection.pause_writing()

    monkeypatch.setattr(link.transport, "write", write_and_pause)
    send(link, bytes(SIZE_BYTES))
    link.clock.run()
    assert len(link.transport.sent) == len(b"HEAD") + PIECE_BYTES
    link.connection.resume_writing()
    link.clock.run()
    assert len(link.transport.sent) == len(b"HEAD") + 2 * PIECE_BYTES


@pytest.mark.parametrize("paused", [False, True])
def test_a_connection_that_is_lost_holds_the_body_no_more_and_takes_no_turn(paused: bool) -> None:
    link = Link()
    body = bytes(SIZE_BYTES)
    references = sys.getrefcount(body)
    send(link, body)
    if paused:
        link.connection.pause_writing()
        link.clock.turn()
    link.transport.abort()
    link.connection.connection_lost(None)
    assert link.sink.seen == [ConnectionReset]
    for _ in range(3):
        link.clock.turn()
    assert not link.clock.next
    gc.collect()
    assert sys.getrefcount(body) == references


def test_an_answer_that_comes_before_the_body_was_taken_ends_the_sending() -> None:
    """A server that refuses early: the connection is not used again."""
    link = Link()
    body = bytes(SIZE_BYTES)
    references = sys.getrefcount(body)
    send(link, body)
    link.connection.data_received(WHOLE)
    assert link.sink.seen[-1] == "end"
    assert link.transport.aborted
    link.connection.connection_lost(None)
    for _ in range(3):
        link.clock.turn()
    assert not link.clock.next
    gc.collect()
    assert sys.getrefcount(body) == references
