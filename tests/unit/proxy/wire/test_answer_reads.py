"""All backends' answers together have one share of a turn, and no backend delays the others."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.proxy.errors.backend import AnswerCut
from penstock.proxy.wire.long_reads import SLICE_BYTES, AnswerReads
from penstock.proxy.wire.pool import ConnectionPool
from tests.unit.proxy.wire.test_connection import Clock, Stream

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
BACKENDS = 64
LARGE = b"x" * 4 * SLICE_BYTES


class Fleet:
    """Backends whose answers share what one data plane has."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.reads = AnswerReads(self.clock.loop, self.clock.time)
        self.reads.scheduler._turn_s = 0.0  # a step a turn
        self.pools = [
            ConnectionPool(
                self.clock.loop, f"http://b{number}:1", connect_timeout_s=1, name=f"{number}"
            )
            for number in range(BACKENDS)
        ]
        for pool in self.pools:
            pool.reads = self.reads

    def stream(self, number: int, *answer: bytes) -> Stream:
        return Stream(self.pools[number]).asks(*answer)


def test_no_turn_takes_more_from_many_backends_than_from_one() -> None:
    fleet = Fleet()
    streams = [fleet.stream(number, HEAD, LARGE) for number in range(BACKENDS)]
    before, turns = 0, 0
    while True:
        taken = sum(len(stream.body) for stream in streams)
        assert taken - before <= SLICE_BYTES
        before = taken
        if not fleet.clock.turn():
            break
        turns += 1
    assert taken == BACKENDS * len(LARGE)
    assert turns >= BACKENDS * 4 - 1


def test_backends_take_turns_however_many_answers_they_have() -> None:
    fleet = Fleet()
    greedy = [fleet.stream(0, HEAD, LARGE) for _ in range(50)]
    for _ in range(10):
        fleet.clock.turn()
    fleet.stream(1, HEAD, LARGE)  # the slice that is taken at once
    modest = fleet.stream(2, HEAD, LARGE)
    for _ in range(15):
        fleet.clock.turn()
    assert len(modest.body) == len(LARGE)
    assert sum(len(stream.body) for stream in greedy) <= 20 * SLICE_BYTES


def test_what_is_short_enough_is_taken_at_once_while_other_backends_wait() -> None:
    fleet = Fleet()
    for number in range(BACKENDS - 1):
        fleet.stream(number, HEAD, LARGE)
    fleet.clock.turn()
    assert len(fleet.stream(BACKENDS - 1, HEAD, b"x" * 10_000).body) == 10_000


def test_records_of_all_backends_share_one_rota() -> None:
    fleet = Fleet()
    assert len({id(pool.reads.records.rota) for pool in fleet.pools}) == 1


@pytest.mark.parametrize(
    ("head", "last"),
    [
        (HEAD, lambda each: each.reads(b"x" * 9)),
        (CHUNKED, lambda each: each.reads(b"9\r\nxxxxxxxxx\r\n")),
        (CHUNKED, lambda each: each.reads(b"0\r\n\r\n")),
        (HEAD, lambda each: each.connection.connection_lost(None)),
        (CHUNKED, lambda each: each.connection.connection_lost(None)),
    ],
    ids=["read", "chunk", "last chunk", "close", "cut"],
)
def test_short_reads_and_ends_that_take_long_are_one_a_turn(
    head: bytes, last: Callable[[Stream], Any]
) -> None:
    fleet = Fleet()
    streams = [fleet.stream(number, head) for number in range(10)]
    for stream in streams:
        stream.connection.dear = True
        last(stream)
    for passed in range(10):
        assert sum(len(stream.sink.seen) > 1 for stream in streams) == passed
        fleet.clock.turn()
    assert all(len(stream.sink.seen) == 2 for stream in streams)
    assert not fleet.clock.turn()


def test_whoever_lets_go_does_not_hear_of_an_end_that_waits() -> None:
    fleet = Fleet()
    stream = fleet.stream(0, CHUNKED)
    stream.connection.dear = True
    stream.connection.connection_lost(None)
    stream.connection.abort()
    fleet.clock.run()
    assert AnswerCut not in stream.sink.seen


def test_the_next_answer_of_a_connection_is_not_dear() -> None:
    fleet = Fleet()
    stream = fleet.stream(0, CHUNKED)
    stream.connection.dear = True
    stream.reads(b"0\r\n\r\n")
    fleet.clock.run()
    assert stream.sink.seen[-1] == "end"
    stream.asks(CHUNKED, b"1\r\nx\r\n")
    assert stream.sink.seen[-1] == b"x"
