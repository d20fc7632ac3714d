"""Which connections to a backend serve another request."""

import pytest

from penstock.proxy.errors.backend import (
    AnswerMalformed,
)
from penstock.proxy.wire.connection import BackendConnection
from penstock.proxy.wire.heads import ResponseHead
from penstock.proxy.wire.pool import IDLE_MAX, IDLE_S, REST_S
from tests.unit.proxy.wire.test_connection import OK, WHOLE, BackendTransport, Link, Sink


@pytest.mark.parametrize(
    "answer",
    [OK + b"connection: close\r\ncontent-length: 0\r\n\r\n", b"HTTP/1.0 200 OK\r\n" + WHOLE[17:]],
)
def test_who_says_close_is_not_kept(answer: bytes) -> None:
    link = Link().ask().answer(answer)
    assert link.sink.seen[-1] == "end"
    assert not link.reusable


def test_an_answer_before_the_request_was_sent_is_not_reused() -> None:
    link = Link().ask()
    link.transport.unsent_bytes = 10
    link.answer(WHOLE)
    assert link.sink.seen[-1] == "end"
    assert not link.reusable


def test_a_sink_that_aborts_hears_no_more() -> None:
    class Fastidious(Sink):
        def head(self, head: ResponseHead) -> None:
            super().head(head)
            link.connection.abort()

    link = Link()
    link.sink = Fastidious()
    link.connection.send(b"", b"", link.sink, method=b"GET")
    link.connection.data_received(WHOLE)
    assert link.sink.seen == [200]
    assert not link.reusable


def test_a_connection_serves_one_client_only() -> None:
    link = Link()
    link.connection.credentials = b"Bearer a"
    link.ask().answer(WHOLE)
    link.clock.now_s += 2 * REST_S
    assert link.pool.take_idle(b"Bearer b") is None
    assert link.pool.take_idle() is None
    assert link.pool.take_idle(b"Bearer a") is link.connection


def test_the_youngest_is_taken_first_and_none_after_its_time() -> None:
    link = Link()
    older, younger = link.connection, BackendConnection(link.pool)
    younger.connection_made(BackendTransport())
    link.pool.put(older)
    link.clock.now_s += 1.0
    link.pool.put(younger)
    link.clock.now_s += 2 * REST_S
    assert link.pool.take_idle() is younger
    link.clock.now_s = 100.0 + IDLE_S
    assert link.pool.take_idle() is None
    assert link.transport.aborted


def test_the_number_of_idle_connections_is_limited() -> None:
    pool = Link().pool
    links = [Link() for _ in range(IDLE_MAX + 1)]
    for link in links:
        pool.put(link.connection)
    assert links[0].transport.aborted
    assert not links[1].transport.aborted


def test_a_pooled_connection_is_never_paused() -> None:
    """The last write of an answer may fill the client's buffer and pause its upstream."""

    class Full(Sink):
        def end(self) -> None:
            super().end()
            link.connection.pause()

    link = Link()
    link.sink = Full()
    link.connection.send(b"", b"", link.sink, method=b"POST")
    link.connection.data_received(WHOLE)
    assert link.reusable
    assert link.transport.reading


def test_a_sink_that_fails_at_the_end_is_told_and_the_connection_closed() -> None:
    class Faulty(Sink):
        def end(self) -> None:
            raise RuntimeError

    link = Link()
    link.sink = Faulty()
    link.connection.send(b"", b"", link.sink, method=b"POST")
    link.connection.data_received(WHOLE)
    assert link.sink.seen[-1] is AnswerMalformed
    assert not link.reusable


def test_connections_to_former_addresses_end_with_their_answers() -> None:
    busy = Link().ask()
    busy.pool.host.epoch += 1
    busy.answer(WHOLE)
    assert busy.sink.seen[-1] == "end"
    assert busy.transport.aborted
    idle = Link().ask().answer(WHOLE)
    idle.pool.host.epoch += 1
    assert not idle.reusable
    assert idle.transport.aborted
