"""Transcripts of one attempt: when it dials, how long it waits for what, and when it ends."""

import contextlib
import gc

import pytest

from penstock.proxy.data.attempt import Attempt
from penstock.proxy.data.json_relay import JsonRelay
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Play, chat, plain, token

ELSEWHERE = ["b2 dialed", "b2 got POST"]
WHOLE = ["client got 200, a [DONE]", "client got end"]


def asked(play: Play, *fields: str, head: bytes = b"") -> None:
    play.client.sends(chat(*fields, head=head))
    assert play.happened() == ["b1 dialed", "b1 got POST"]


def answered(play: Play) -> None:
    """One request is answered by the only backend, whose connection rests."""
    asked(play)
    play["b1"].sends(STREAM, token("a"), DONE, END)
    assert play.happened() == [*WHOLE, "counted 200 b1"]


def test_a_dial_that_takes_too_long() -> None:
    with contextlib.closing(Play(timeouts={"connect_s": 2})) as play:
        play.down["b1"] = None
        play.client.sends(chat())
        play.passes(1.9)
        assert play.happened() == ["b1 dialed"]
        play.passes(0.2)
        assert play.happened() == ["b1 failed: connect", *ELSEWHERE]


def test_a_request_whose_time_is_over_is_dialed_no_longer() -> None:
    with contextlib.closing(Play(timeouts={"connect_s": 20, "total_s": 3})) as play:
        play.down["b1"] = None
        play.client.sends(chat())
        play.passes(2.9)
        assert play.happened() == ["b1 dialed"]
        play.passes(0.2)
        told = ["client got 504, backend_timeout", "counted 504 b1"]
        assert play.happened() == ["b1 failed: out_of_time", *told]
        assert play.backends[0].prefill_speed.recent.count == 0  # never sent


def test_a_dial_is_bridged_by_comments_too() -> None:
    with contextlib.closing(Play(timeouts={"connect_s": 20, "hold_s": 3})) as play:
        play.down["b1"] = None
        play.client.sends(chat())
        play.passes(3.1)
        assert play.happened() == ["b1 dialed", "client got 200, ping"]
        play.passes(17)
        assert play.happened() == ["client got ping", "b1 failed: connect", *ELSEWHERE]


def test_a_first_token_that_takes_too_long() -> None:
    with contextlib.closing(Play(timeouts={"first_byte_s": 3})) as play:
        asked(play)
        play["b1"].sends(STREAM)  # a head is no token
        play.passes(2.9)
        assert play.happened() == []
        play.passes(0.2)
        assert play.happened() == ["b1 dropped", "b1 failed: timeout", *ELSEWHERE]


def test_a_late_first_token_is_bridged_by_comments() -> None:
    with contextlib.closing(Play(timeouts={"hold_s": 5})) as play:
        asked(play)
        play.passes(5.1)
        assert play.happened() == ["client got 200, ping"]
        play.passes(15)
        assert play.happened() == ["client got ping"]
        play["b1"].resets()  # hidden all the same
        assert play.happened() == ["b1 failed: reset", *ELSEWHERE]
        play["b2"].sends(STREAM, token("a"), DONE, END)
        assert play.happened() == ["client got a [DONE]", "client got end", "counted 200 b2"]


def test_a_failure_of_all_behind_a_comment_is_an_event() -> None:
    with contextlib.closing(Play(timeouts={"hold_s": 5})) as play:
        asked(play)
        play.passes(5.1)
        play["b1"].resets()
        play["b2"].sends(plain("502 Bad"))
        assert play.happened()[-3:] == [
            "client got backend_error",
            "client closed",
            "counted 200 b2",
        ]


def test_a_stream_that_falls_silent() -> None:
    with contextlib.closing(Play(timeouts={"idle_s": 10})) as play:
        asked(play)
        play["b1"].sends(STREAM, token("a"))
        play.passes(9)
        play["b1"].sends(token("b"))  # no silence so far
        play.passes(9.9)
        assert play.happened() == ["client got 200, a", "client got b"]
        play.passes(0.2)
        told = ["client got stream_broken", "client closed", "counted 200 b1"]
        assert play.happened() == ["b1 dropped", "b1 failed: idle", *told]


@pytest.mark.parametrize("committed", [False, True])
def test_a_request_that_takes_longer_than_any_may(committed: bool) -> None:
    with contextlib.closing(Play(timeouts={"total_s": 5})) as play:
        asked(play)
        play["b1"].sends(STREAM, *[token("a")] * committed)
        play.happened()
        play.passes(5.1)
        if committed:
            told = ["b1 failed: total", "client got stream_broken", "client closed"]
        else:
            told = ["b1 failed: out_of_time", "client got 504, backend_timeout"]
        assert play.happened() == ["b1 dropped", *told, f"counted {200 if committed else 504} b1"]


def test_a_client_that_waits_no_longer_has_the_engine_freed(play: Play) -> None:
    asked(play, head=b"x-stainless-read-timeout: 3\r\n")
    play.passes(3.1)
    assert play.happened() == []  # its own timer comes first
    play.passes(0.2)
    told = ["client got 408, request_timeout", "counted 408 b1"]
    assert play.happened() == ["b1 dropped", "b1 failed: client_timeout", *told]


def test_a_client_that_takes_nothing_stops_its_backend() -> None:
    with contextlib.closing(Play(timeouts={"idle_s": 5, "client_stall_s": 20})) as play:
        asked(play)
        play["b1"].sends(STREAM, token("a"))
        play.happened()
        play.client.fills()
        play.passes(19)  # the silence is the client's
        play.client.drains()
        assert play.happened() == ["b1 is not read", "b1 is read again"]
        play.passes(5.1)  # from now on it is the backend's
        assert play.happened()[:2] == ["b1 dropped", "b1 failed: idle"]


def test_a_client_that_takes_nothing_for_long_is_dropped() -> None:
    with contextlib.closing(Play(timeouts={"client_stall_s": 20})) as play:
        asked(play)
        play["b1"].sends(STREAM, token("a"))
        play.happened()
        play.client.fills()
        play.passes(20.1)
        assert play.happened() == [
            "b1 is not read",
            "client dropped",
            "b1 dropped",
            "counted 200 b1",
        ]


def test_a_client_that_takes_a_little_is_not_dropped_for_a_large_write() -> None:
    """Most of the write follows after the first piece of it has paused the backend."""
    with contextlib.closing(Play(timeouts={"client_stall_s": 20})) as play:
        asked(play)
        play["b1"].sends(STREAM, token("a"))
        play.happened()
        play.client.unsent_bytes = 20_000
        play.client.connection.pause_writing()
        play.client.unsent_bytes = 300_000
        play.turns()
        for _ in range(3):
            play.client.unsent_bytes -= 10_000
            play.passes(19.9)
        assert play.happened() == ["b1 is not read"]
        play.passes(20.1)
        assert play.happened()[0] == "client dropped"


# Connections that are used again ---------------------------------------------------------------


def test_a_connection_is_used_again_once_it_has_rested() -> None:
    with contextlib.closing(Play(1)) as play:
        answered(play)
        play.client.sends(chat())
        assert play.happened() == ["b1 dialed", "b1 got POST"]  # what it sends unasked comes now
        play["b1"].sends(STREAM, token("a"), DONE, END)
        play.passes(0.1)
        play.happened()
        play.client.sends(chat())
        assert play.happened() == ["b1 got POST"]


def test_a_connection_that_its_server_has_closed_meanwhile_is_no_failure() -> None:
    with contextlib.closing(Play(1)) as play:
        answered(play)
        play.passes(1)
        play.client.sends(chat())
        assert play.happened() == ["b1 got POST"]
        play["b1"].resets()
        assert play.happened() == ["b1 dialed", "b1 got POST"]


def test_a_reset_that_comes_late_is_a_failure() -> None:
    with contextlib.closing(Play(1)) as play:
        answered(play)
        play.passes(1)
        play.client.sends(chat())
        play.passes(0.5)  # longer than any round trip: an engine has worked on it
        play["b1"].resets()
        told = ["client got 502, backend_error", "counted 502 b1"]
        assert play.happened() == ["b1 got POST", "b1 failed: reset", *told]


def test_a_connection_that_is_long_idle_is_closed() -> None:
    with contextlib.closing(Play(1)) as play:
        answered(play)
        play.passes(3.4)
        assert play.happened() == []
        play.passes(0.2)
        assert play.happened() == ["b1 dropped"]


def test_a_connection_on_which_too_much_came_is_not_used_again() -> None:
    with contextlib.closing(Play(1)) as play:
        asked(play)
        play["b1"].sends(STREAM, token("a"), DONE, END, b"HTTP/1.1 200 OK\r\n")
        assert play.happened() == [*WHOLE, "b1 dropped", "counted 200 b1"]
        play.passes(1)
        play.client.sends(chat())
        assert play.happened() == ["b1 dialed", "b1 got POST"]


def test_a_connection_is_not_used_for_other_credentials() -> None:
    with contextlib.closing(Play(1)) as play:
        answered(play)
        play.passes(1)
        play.client.sends(chat(head=b"authorization: Bearer other\r\n"))
        assert play.happened() == ["b1 dialed", "b1 got POST"]


# The process slept -----------------------------------------------------------------------------


def test_time_in_which_the_process_did_not_run_counts_for_nobody() -> None:
    with contextlib.closing(Play(timeouts={"first_byte_s": 3})) as play:
        asked(play)
        play.sleeps(100)
        play.passes(2.9)
        assert play.happened() == []
        play.passes(0.6)
        assert play.happened() == ["b1 dropped", "b1 failed: timeout", *ELSEWHERE]


def sends_large(play: Play, choice: bytes) -> None:
    """The first backend sends a plain answer in short reads, all in this turn."""
    body = b'{"choices":[%b],"pad":[%b{}]}' % (choice, b"{}," * 40_000)
    data = plain("200 OK", body)
    for at in range(0, len(data), 2_000):
        play["b1"].protocol.data_received(data[at : at + 2_000])


def test_the_end_of_a_large_plain_answer_is_read_in_turns() -> None:
    with contextlib.closing(Play(backends=1)) as play:
        play.client.sends(chat(stream=False))
        assert play.happened() == ["b1 dialed", "b1 got POST"]
        sends_large(play, b'{"text":"a"}')
        assert play.happened() == []
        play.passes(1)
        got = play.happened()
        assert (got[0], got[-1]) == ("client got 200, a", "counted 200 b1")
        play.client.sends(chat())
        assert play.happened() == ["b1 got POST"]


def test_clients_take_turns_with_the_ends_of_large_answers() -> None:
    with contextlib.closing(Play(backends=1)) as play:
        play.client.sends(chat(stream=False))
        sends_large(play, b'{"text":"a"}')
        scheduler = play.plane.answer_reads.scheduler
        assert scheduler.knows(play.client.connection.holder)
        assert not scheduler.knows("b1")


def test_a_client_that_leaves_meanwhile_leaves_the_connection() -> None:
    with contextlib.closing(Play(backends=1)) as play:
        play.client.sends(chat(stream=False))
        assert play.happened() == ["b1 dialed", "b1 got POST"]
        sends_large(play, b'{"text":"a"}')
        play.client.closes()
        assert play.happened() == ["client dropped", "counted 499 b1"]
        play.passes(1)
        play.client = play.connects()
        play.client.sends(chat(stream=False))
        assert play.happened() == ["b1 got POST"]


def test_a_large_plain_answer_that_was_given_up_is_tried_elsewhere(play: Play) -> None:
    play.client.sends(chat(stream=False))
    assert play.happened() == ["b1 dialed", "b1 got POST"]
    sends_large(play, b'{"text":"a","finish_reason":"abort"}')
    play.turns()
    assert play.happened() == ["b1 failed: aborted", *ELSEWHERE]


def test_a_plain_answer_that_falls_silent_amid_its_body() -> None:
    with contextlib.closing(Play(timeouts={"idle_s": 10})) as play:
        play.client.sends(chat(stream=False))
        assert play.happened() == ["b1 dialed", "b1 got POST"]
        play.passes(30)  # it may take its time until it begins
        play["b1"].sends(plain("200 OK", b'{"choices":[{"text":"a"}]}')[:-5])
        play.passes(9.9)
        assert play.happened() == []
        play.passes(0.2)
        assert play.happened() == ["b1 dropped", "b1 failed: cut", *ELSEWHERE]


@pytest.mark.parametrize("large", [True, False])
def test_a_plain_answer_leaves_nothing_to_the_collector(large: bool) -> None:
    with contextlib.closing(Play(backends=1)) as play:
        gc.collect()
        gc.disable()
        try:
            play.client.sends(chat(stream=False))
            if large:
                sends_large(play, b'{"text":"a"}')
            else:
                play["b1"].sends(plain("200 OK", b'{"choices":[{"text":"a"}]}'))
            play.passes(1)
            assert play.happened()[-1] == "counted 200 b1"
            assert not [each for each in gc.get_objects() if isinstance(each, JsonRelay | Attempt)]
        finally:
            gc.enable()
