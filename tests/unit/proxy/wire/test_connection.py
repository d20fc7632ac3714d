"""A backend's connection by transcript: where an answer ends, and which requests it serves."""

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from penstock.proxy.errors.backend import (
    AnswerCut,
    AnswerHeadTooLarge,
    AnswerMalformed,
    BackendError,
    ConnectionReset,
)
from penstock.proxy.wire.connection import INTERIM_MAX, BackendConnection
from penstock.proxy.wire.edit import PIECE_BYTES
from penstock.proxy.wire.heads import ResponseHead
from penstock.proxy.wire.pool import DISTRUST_S, IDLE_MAX, IDLE_S, REST_S, ConnectionPool
from tests.unit.proxy.turns import Turns
from tests.unit.proxy.wire.transport import Transport


class Clock(Turns):
    """The part of a loop that a pool needs, and a hand to turn it."""

    now_s = 100.0

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Any) -> "Clock":
        return self

    def cancel(self) -> None:
        pass


class Socket:
    """A descriptor whose readiness a test decides: the reading end of a pipe."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()

    def setsockopt(self, *option: object) -> None:
        pass

    def fileno(self) -> int:
        return self._reading

    def arrive(self, data: bytes) -> None:
        os.write(self._writing, data)

    def __del__(self) -> None:
        os.close(self._reading)
        os.close(self._writing)


class BackendTransport(Transport):
    def __init__(self) -> None:
        super().__init__()
        self.socket = Socket()
        self.unsent_bytes = 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes


class Sink:
    """Notes what it is told, and does what it `then` does."""

    def __init__(self, **then: Callable[[], object]) -> None:
        self.seen: list[Any] = []
        self.length: int | None = None
        self._then = then

    def head(self, head: ResponseHead) -> None:
        self.length = head.length
        self._told("head", head.status)

    def body(self, data: bytes) -> None:
        self._told("body", data)

    def end(self) -> None:
        self._told("end", "end")

    def lost(self, error: BackendError) -> None:
        self._told("lost", type(error))

    def _told(self, call: str, what: object) -> None:
        self.seen.append(what)
        self._then.get(call, lambda: None)()


class Stream:
    """A connection of a pool, what its backend answers, and what its sink saw."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        self.sink = Sink()
        self.transport = BackendTransport()
        self.connection = BackendConnection(pool)
        self.connection.connection_made(self.transport)

    def asks(self, *answer: bytes) -> "Stream":
        """For one that is answered so, before the loop's next turn."""
        self.connection.send(b"HEAD\r\n\r\n", b"body", self.sink, method=b"POST")
        return self.reads(*answer)

    def reads(self, *pieces: bytes) -> "Stream":
        for piece in pieces:
            self.connection.data_received(piece)
        return self

    def lose(self) -> None:
        self.transport.close()
        self.connection.connection_lost(None)

    @property
    def body(self) -> bytes:
        return b"".join(each for each in self.sink.seen if isinstance(each, bytes))


class Link(Stream):
    """A pool with a clock, and one connection of it."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(
            ConnectionPool(
                self.clock.loop, "http://10.0.0.1:8000", connect_timeout_s=1, now=self.clock.time
            )
        )

    def ask(self, method: bytes = b"POST") -> "Link":
        self.sink = Sink()
        body = b"body" if method == b"POST" else b""
        self.connection.send(b"HEAD\r\n\r\n", body, self.sink, method=method)
        return self

    def answer(self, *pieces: bytes) -> "Link":
        for piece in pieces:
            if not self.transport.closed:
                self.connection.data_received(piece)
                self.clock.run()
        return self

    @property
    def reusable(self) -> bool:
        self.clock.now_s += 2 * REST_S
        return self.pool.take_idle() is self.connection


OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + b"content-length: 5\r\n\r\nhello"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"


@pytest.mark.parametrize("answer", [WHOLE, CHUNKED], ids=["length", "chunked"])
def test_an_answer_at_every_split(answer: bytes) -> None:
    for cut in range(len(answer) + 1):
        link = Link().ask().answer(*filter(None, (answer[:cut], answer[cut:])))
        assert link.body == b"hello"
        assert link.sink.seen[0] == 200
        assert link.sink.seen[-1] == "end"
        assert link.reusable


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (b"HEAD", OK + b"content-length: 5\r\n\r\n"),
        (b"HEAD", OK + b"transfer-encoding: chunked\r\n\r\n"),
        (b"GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n"),
        (b"GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        (b"GET", OK + b"content-length: 0\r\n\r\n"),
    ],
)
def test_an_answer_without_body_ends_at_its_head(method: bytes, answer: bytes) -> None:
    """llhttp would wait for the body that the length announces."""
    link = Link().ask(method).answer(answer)
    assert link.sink.seen[1:] == ["end"]
    assert link.reusable


def test_interim_answers_are_swallowed() -> None:
    """llhttp ends a message at any 1xx."""
    hints = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    link = Link().ask().answer(b"HTTP/1.1 100 Continue\r\n\r\n" + hints + hints + WHOLE)
    assert link.sink.seen == [200, b"hello", "end"]


@pytest.mark.parametrize("answer", [WHOLE, CHUNKED], ids=["length", "chunked"])
@pytest.mark.parametrize("surplus", [WHOLE, b"x", b"HTTP/1.1 408 Request Timeout\r\n\r\n"])
def test_a_second_answer_is_nobodys_and_kills_the_connection(answer: bytes, surplus: bytes) -> None:
    link = Link().ask().answer(answer + surplus)
    assert link.sink.seen == [200, b"hello", "end"]
    assert link.transport.aborted
    assert not link.reusable


@pytest.mark.parametrize(
    "happens",
    [
        lambda link: link.reads(b"HTTP/1.1 200 OK\r\n\r\nfor somebody else"),
        lambda link: link.transport.socket.arrive(b"H"),  # which the loop has not read yet
        lambda link: link.transport.pause_reading(),  # something waits to be deciphered
        lambda link: setattr(link.pool.host, "epoch", 1),  # the backend has moved
    ],
)
def test_what_happens_to_an_idle_connection_kills_it(happens: Callable[[Link], object]) -> None:
    link = Link().ask().answer(WHOLE)
    happens(link)
    assert not link.reusable
    assert link.transport.aborted


def test_a_connection_to_a_former_address_ends_with_its_answer() -> None:
    link = Link().ask()
    link.pool.host.epoch += 1
    link.answer(WHOLE)
    assert link.sink.seen[-1] == "end"
    assert link.transport.aborted


def test_a_connection_rests_before_it_is_used_again() -> None:
    link = Link().ask().answer(WHOLE)
    link.clock.now_s += 0.019  # not by the constant: bytes that come up to here are no answer
    assert link.pool.take_idle() is None
    assert not link.transport.aborted
    link.clock.now_s += 0.002
    assert link.pool.take_idle() is link.connection


@pytest.mark.parametrize("when", ["with the answer", "later"])
def test_a_backend_that_sent_too_much_gets_one_request_a_connection(when: str) -> None:
    link = Link()
    link.pool.put(Stream(link.pool).connection)
    link.ask().answer(*([WHOLE, b"x"] if when == "later" else [WHOLE + b"x"]))
    link.clock.now_s += 2 * REST_S
    assert link.pool.take_idle() is None  # whatever was idle is gone too
    fresh = Link()
    fresh.connection._owner = link.pool
    assert fresh.ask().answer(WHOLE).transport.aborted
    link.clock.now_s += DISTRUST_S
    trusted = Stream(link.pool).connection
    link.pool.put(trusted)
    link.clock.now_s += 2 * REST_S
    assert link.pool.take_idle() is trusted


def test_a_body_where_none_belongs_ends_the_connection() -> None:
    """A backend that ignores the body of a GET would take it for the next request."""
    link = Link()
    link.connection.send(b"HEAD\r\n\r\n", b"body", link.sink, method=b"GET")
    assert not link.answer(WHOLE).reusable


def test_a_flood_of_interim_answers_is_cut() -> None:
    hint = b"HTTP/1.1 103 Early Hints\r\n\r\n"
    assert Link().ask().answer(hint * INTERIM_MAX + WHOLE).reusable
    assert Link().ask().answer(hint * (INTERIM_MAX + 1) + WHOLE).sink.seen == [AnswerMalformed]


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_a_status_without_a_body_is_not_until_the_close(status: bytes) -> None:
    link = Link().ask().answer(b"HTTP/1.1 %b\r\ncontent-type: application/json\r\n\r\n" % status)
    assert link.sink.length == 0
    assert link.reusable


def test_a_body_until_the_end_of_the_connection_completes() -> None:
    """llhttp has no finish call for these."""
    link = Link().ask().answer(OK + b"\r\nhel", b"lo")
    link.connection.connection_lost(None)
    assert link.body == b"hello"
    assert link.sink.seen[-1] == "end"
    reset = Link().ask().answer(OK + b"\r\nhel")
    reset.connection.connection_lost(ConnectionResetError())
    assert reset.sink.seen[-1] is AnswerCut


@pytest.mark.parametrize("answer", [WHOLE, CHUNKED], ids=["length", "chunked"])
def test_a_cut_answer_is_a_cut_answer_wherever_it_is_cut(answer: bytes) -> None:
    for cut in range(len(answer)):
        link = Link().ask()
        if cut:
            link.answer(answer[:cut])
        link.connection.connection_lost(None)
        assert link.sink.seen[-1] is (AnswerCut if cut else ConnectionReset)


@pytest.mark.parametrize(
    "answer",
    [
        # What cannot become an answer is not waited for.
        *(b"\x00", b"SSH-2.0-x\r\n", b"HTTP/2", OK + b"x: y\n", b"HTTP/1.1 200 OK\rx"),
        b"garbage\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",  # nobody asked for it
        OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        OK + b"content-length: x\r\n\r\n",
        OK + b"x: y\r\n" * 1_000 + b"\r\n",
    ],
)
def test_a_malformed_answer_closes_its_connection(answer: bytes) -> None:
    link = Link().ask().answer(answer)
    head = [200] if b"zz" in answer else []
    assert link.sink.seen == [*head, AnswerMalformed]
    assert link.transport.aborted


def test_a_head_too_large_accuses_nobody() -> None:
    """vLLM packs what it embeds into bytes, and describes each of them in one header line."""
    described = b'{"index": 1, "embedding": "bytes", "start": 0, "end": 8}, ' * 2_000
    link = Link().ask().answer(OK + b"metadata: " + described)
    assert link.sink.seen[-1] is AnswerHeadTooLarge
    assert link.transport.aborted
    error = AnswerHeadTooLarge()
    assert (error.suspicious, error.penal, error.retryable) == (False, False, False)


# Which connections serve another request -------------------------------------------------------


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
    link = Link()
    link.sink = Sink(head=link.connection.abort)
    link.asks(WHOLE)
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
    older, younger = link.connection, Stream(link.pool).connection
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
    link = Link()
    link.sink = Sink(end=link.connection.pause)
    link.asks(WHOLE)
    assert link.reusable
    assert link.transport.reading


def test_a_sink_that_fails_at_the_end_is_told_and_the_connection_closed() -> None:
    link = Link()
    link.sink = Sink(end=lambda: 1 / 0)
    link.asks(WHOLE)
    assert link.sink.seen[-1] is AnswerMalformed
    assert not link.reusable


# Large requests --------------------------------------------------------------------------------

SIZE_BYTES = 8 * PIECE_BYTES


def send(link: Link, body: bytes) -> int:
    """How many references there were to that body before."""
    references = sys.getrefcount(body)
    link.connection.send(b"HEAD", body, link.sink, method=b"POST", sender="a")
    return references


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


def forgotten(link: Link, body: bytes, references: int) -> None:
    """No turn is taken for it, and nothing more refers to it."""
    for _ in range(3):
        link.clock.turn()
    assert not link.clock.next
    gc.collect()
    assert sys.getrefcount(body) == references


@pytest.mark.parametrize("paused", [False, True])
def test_a_connection_that_is_lost_holds_the_body_no_more_and_takes_no_turn(paused: bool) -> None:
    link = Link()
    body = bytes(SIZE_BYTES)
    references = send(link, body)
    if paused:
        link.connection.pause_writing()
        link.clock.turn()
    link.lose()
    assert link.sink.seen == [ConnectionReset]
    forgotten(link, body, references)


def test_an_answer_that_comes_before_the_body_was_taken_ends_the_sending() -> None:
    """A server that refuses early: the connection is not used again."""
    link = Link()
    body = bytes(SIZE_BYTES)
    references = send(link, body)
    link.connection.data_received(WHOLE)
    assert link.sink.seen[-1] == "end"
    assert link.transport.aborted
    link.connection.connection_lost(None)
    forgotten(link, body, references)
