"""Reads of answers that would hold the loop are taken by turns, whole and in their order."""

import pytest

from penstock.proxy.errors.backend import AnswerCut, AnswerMalformed
from penstock.proxy.wire.long_reads import (
    LEAST_BYTES,
    LINE_ENDS_MAX,
    SLICE_BYTES,
    cost_s,
)
from penstock.proxy.wire.scheduler import AT_ONCE_S
from tests.unit.proxy.wire.test_connection import Link, Sink, Stream

HEAD = b"HTTP/1.1 200 OK\r\n"
LETTERS = bytes(97 + number % 26 for number in range(40_000))
ONE_BYTE_CHUNKS = b"".join(b"1\r\n%c\r\n" % letter for letter in LETTERS)
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
CLOSED = HEAD + b"\r\n"
# Each is short enough for a slice: only all of them together would hold the loop.
EVENTS = b"".join(b'1d\r\ndata: {"content":"%03d"}    \n\n\r\n' % number for number in range(80))
EVENTS_BODY = b"".join(b'data: {"content":"%03d"}    \n\n' % number for number in range(80))
# Who feeds one of these in one call stands for a loop that goes on reading it.
HOSTILE = {
    "chunks of a byte": (CHUNKED, ONE_BYTE_CHUNKS, LETTERS),
    "LF": (CLOSED, b"\n\n" * 20_000, b"\n\n" * 20_000),
    "CR LF": (CLOSED, b"\r\n\r\n" * 10_000, b"\r\n\r\n" * 10_000),
    "CR": (CLOSED, b"\r" * 40_000, b"\r" * 40_000),
    "comments": (CLOSED, b": x\n\n" * 10_000, b": x\n\n" * 10_000),
    "few lines": (CLOSED, b"x" * 250_000, b"x" * 250_000),
    "the dear ones last": (CLOSED, b"x" * 70_000 + b"\n" * 9_000, b"x" * 70_000 + b"\n" * 9_000),
}


def asked(*answer: bytes) -> Link:
    """A connection that was answered so, before the loop's next turn."""
    link = Link()
    link.pool.reads.scheduler._turn_s = 0.0  # a step a turn
    link.asks(*answer)
    return link


def line_ends(data: bytes) -> int:
    return data.count(b"\n") + data.count(b"\r")


@pytest.mark.parametrize("name", HOSTILE)
def test_no_turn_takes_more_than_a_slice(name: str) -> None:
    head, sent, body = HOSTILE[name]
    most = LINE_ENDS_MAX if sent is ONE_BYTE_CHUNKS else SLICE_BYTES
    link = asked(head, sent)
    while True:
        slices = [each for each in link.sink.seen if isinstance(each, bytes)]
        assert len(slices) <= 1
        link.sink.seen.clear()
        taken = slices[0] if slices else b""
        assert len(taken) <= most
        assert len(taken) <= LEAST_BYTES or line_ends(taken) <= LINE_ENDS_MAX
        assert body.startswith(taken)
        body = body[len(taken) :]
        if not body:
            break
        assert not link.transport.reading
        assert link.clock.turn()
    assert link.transport.reading
    assert not link.clock.turn()


def test_ordinary_reads_are_taken_at_once() -> None:
    event = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":null}]}\n\n'
    chunk = b"%x\r\n%b\r\n" % (len(event), event)
    for sent in (chunk, chunk * 20, chunk * 80):
        link = asked(CHUNKED, sent)
        assert link.transport.reading
        assert len(link.pool.reads.scheduler) == 0


def test_the_backends_other_answers_get_turns_too() -> None:
    first = asked(CHUNKED, ONE_BYTE_CHUNKS)
    other = Stream(first.pool).asks(CHUNKED, ONE_BYTE_CHUNKS)
    while first.clock.turn():
        pieces = [sum(isinstance(each, bytes) for each in s.sink.seen) for s in (first, other)]
        assert abs(pieces[0] - pieces[1]) <= 2
    assert first.body == LETTERS


def test_an_answer_ends_in_its_slice_and_its_connection_is_used_again() -> None:
    link = asked(CHUNKED, ONE_BYTE_CHUNKS + LAST)
    assert "end" not in link.sink.seen
    link.clock.run()
    assert link.sink.seen[-1] == "end"
    assert link.transport.reading
    assert link.reusable


def test_what_comes_after_an_answer_is_surplus_in_whatever_slice() -> None:
    length = b"content-length: %d\r\n\r\n" % len(LETTERS)
    for answer in (
        CHUNKED + ONE_BYTE_CHUNKS + LAST + b"\n" * 3_000,
        HEAD + length + LETTERS + b"\n" * 100_000,
        # The end of a slice and of the answer at once.
        HEAD + b"content-length: 1005\r\n\r\n" + b"\n" * 1_005 + b"\n" * 100_000,
    ):
        link = asked(answer)
        link.clock.run()
        assert link.sink.seen[-1] == "end"
        assert link.transport.aborted
        assert not link.reusable


def test_nothing_is_taken_while_the_client_takes_nothing() -> None:
    link = asked(CHUNKED, ONE_BYTE_CHUNKS)
    link.clock.turn()
    link.connection.pause()
    seen = link.body
    link.clock.run()
    assert link.body == seen
    for _ in range(3):  # whoever is queued already is not queued again
        link.connection.resume()
        link.connection.pause()
    link.connection.resume()
    assert len(link.pool.reads.scheduler) == 1
    assert not link.transport.reading
    link.clock.run()
    assert link.body == LETTERS
    assert link.transport.reading


def test_who_pauses_in_the_last_slice_is_not_read() -> None:
    link = asked()
    link.sink = link.connection.sink = Sink(body=link.connection.pause)
    link.reads(CHUNKED, ONE_BYTE_CHUNKS)
    while link.body != LETTERS:
        link.connection.resume()
        link.clock.turn()
    assert not link.clock.turn()
    assert not link.transport.reading
    link.connection.resume()
    assert link.transport.reading


@pytest.mark.parametrize(("answer", "end"), [(CLOSED, "end"), (CHUNKED, AnswerCut)])
@pytest.mark.parametrize("spent_s", [0.0, AT_ONCE_S])
def test_a_close_waits_for_the_turns_of_what_was_read(
    answer: bytes, end: object, spent_s: float
) -> None:
    link = asked(CHUNKED, EVENTS)
    link.pool.reads.scheduler.spend(spent_s)
    lost = Stream(link.pool).asks(answer, ONE_BYTE_CHUNKS)
    assert bool(lost.body) is not bool(spent_s)
    lost.lose()
    assert lost.sink.seen[:1] == [200]
    assert end not in lost.sink.seen
    link.clock.run()
    assert lost.sink.seen[-1] == end
    assert lost.body == (ONE_BYTE_CHUNKS if answer is CLOSED else LETTERS)


def test_who_lets_go_hears_nothing_more() -> None:
    link = asked(CHUNKED, ONE_BYTE_CHUNKS)
    seen = len(link.sink.seen)
    link.lose()
    link.connection.abort()
    link.clock.run()
    assert len(link.sink.seen) == seen


def test_a_fault_in_a_slice_ends_its_answer_alone() -> None:
    link = asked()

    def fail_later() -> None:
        if len(link.sink.seen) > 4:
            raise ValueError

    link.sink = link.connection.sink = Sink(body=fail_later)
    link.reads(CHUNKED, ONE_BYTE_CHUNKS)
    link.clock.run()
    assert link.sink.seen[-1] is AnswerMalformed
    assert link.transport.aborted


def crowd(link: Link, read: bytes) -> list[Stream]:
    """Answers of one backend, of which this comes in one turn."""
    streams = [Stream(link.pool).asks(CHUNKED) for _ in range(300)]
    for stream in streams:
        stream.reads(read)
    return streams


def test_all_answers_of_a_backend_together_take_no_more_than_a_slice_in_a_turn() -> None:
    link = asked()
    clock, pool = link.clock, link.pool
    streams = crowd(link, EVENTS)
    turns = passed = 0
    while True:
        before, passed = passed, sum(len(stream.body) for stream in streams)
        assert 0 < passed - before <= AT_ONCE_S / cost_s(EVENTS, len(EVENTS)) * len(EVENTS_BODY)
        assert all(stream.transport.reading for stream in streams if stream.body)
        if passed == len(streams) * len(EVENTS_BODY):
            break
        assert clock.turn()
        turns += 1
    assert turns >= len(streams) - AT_ONCE_S / cost_s(EVENTS, len(EVENTS))
    assert all(stream.body == EVENTS_BODY for stream in streams)
    assert len(pool.reads.scheduler) == 0
    # In the next turn there is room again.
    clock.turn()
    streams[0].reads(EVENTS)
    assert streams[0].body == EVENTS_BODY * 2


# Just below what is a long read. All of them together are one of half a megabyte.
TINY_BODY = b"data:a\n\n" * 240
TINY = b"%x\r\n%b\r\n" % (len(TINY_BODY), TINY_BODY)
EVENT = b"data: {" + b'"content":"abcdef",' * 13 + b'"finish_reason":null}\n\n'
ORDINARY = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)


def test_short_reads_of_very_many_events_have_their_part_in_the_slice() -> None:
    link = asked()
    streams = crowd(link, TINY)
    passed, turns = 0, 0
    while True:
        before, passed = passed, sum(bool(stream.body) for stream in streams)
        assert passed - before <= AT_ONCE_S / cost_s(TINY, len(TINY)) + 1
        if passed == len(streams):
            break
        assert link.clock.turn()
        turns += 1
    assert turns > 200
    assert all(stream.body == TINY_BODY for stream in streams)
    assert len(link.pool.reads.scheduler) == 0


def test_reads_of_an_event_never_wait() -> None:
    """Not where hundreds come in one turn, nor while others of their backend wait."""
    link = asked()
    streams = crowd(link, ORDINARY)
    assert all(stream.body for stream in streams)
    liars = [Stream(link.pool).asks(CHUNKED, TINY) for _ in range(20)]
    assert not liars[-1].body
    for stream in streams:
        stream.reads(ORDINARY)
        assert stream.body == EVENT * 2


def test_answers_that_begin_with_a_long_read_wait_for_their_turn_too() -> None:
    """What comes with a head was counted with it, and is taken with it."""
    link = asked()
    answer = CHUNKED + EVENTS + LAST
    link.pool.reads.scheduler.spend(AT_ONCE_S - 1.1 * cost_s(answer, len(answer)))
    streams = [Stream(link.pool).asks(answer) for _ in range(3)]
    assert [len(stream.sink.seen) for stream in streams] == [3, 0, 0]
    assert [stream.transport.reading for stream in streams] == [True, False, False]
    link.clock.run()
    for stream in streams:
        assert stream.sink.seen == [200, EVENTS_BODY, "end"]
        assert stream.transport.reading
        assert not stream.transport.aborted


def test_several_moderate_reads_are_taken_at_once() -> None:
    link = asked()
    answer = CLOSED + b"x" * 15_000
    count = int(AT_ONCE_S / cost_s(answer, len(answer)))
    assert count > 10
    streams = [Stream(link.pool).asks(answer) for _ in range(count + 1)]
    assert [bool(stream.body) for stream in streams] == [True] * count + [False]


def test_who_comes_while_others_wait_is_behind_them() -> None:
    link = asked()
    first, second = Stream(link.pool).asks(CHUNKED, EVENTS * 2), Stream(link.pool).asks(CHUNKED)
    for callback in link.clock.next:  # a turn of which the rota has had none yet
        if callback != link.pool.reads.scheduler._turn:
            callback()
    second.reads(EVENTS)
    assert first.body
    assert not second.body


def test_who_is_paused_while_all_of_its_read_waits_is_passed_over() -> None:
    link = asked(CHUNKED, EVENTS)
    link.pool.reads.scheduler.spend(AT_ONCE_S)
    slow = Stream(link.pool).asks(CHUNKED, EVENTS)
    slow.connection.pause()
    link.clock.run()
    assert not slow.body
    slow.connection.resume()
    assert not slow.transport.reading
    link.clock.run()
    assert slow.body == EVENTS_BODY
    assert slow.transport.reading
