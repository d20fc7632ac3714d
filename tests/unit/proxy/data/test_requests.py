"""Transcripts of a client's connection: where requests begin and end, and what is refused when."""

import pytest

from penstock.balancing.prefix_cache.blocks import BLOCK_BYTES
from penstock.proxy.data.ending import LINGER_BYTES_MAX, LINGER_S
from penstock.proxy.data.request import HASH_BYTES
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Play, chat, token

REQUEST = chat()
HEAD_END = REQUEST.index(b"\r\n\r\n")
ANSWER = (STREAM, token("a"), DONE, END)
WHOLE = ["client got 200, a [DONE]", "client got end"]
SENT = ["b1 dialed", "b1 got POST"]


def test_a_request_may_come_byte_by_byte(play: Play) -> None:
    for at in range(len(REQUEST)):
        assert play.happened() == []
        play.client.sends(REQUEST[at : at + 1])
    assert play.happened() == SENT


def test_a_request_that_comes_early_waits_for_the_answer_before_it(play: Play) -> None:
    play.client.sends(REQUEST, REQUEST)
    assert play.happened() == SENT
    play["b1"].sends(*ANSWER)
    assert play.happened() == [*WHOLE, "b2 dialed", "b2 got POST", "counted 200 b1"]


def test_a_request_waits_until_the_answer_before_it_was_taken(play: Play) -> None:
    play.client.sends(REQUEST, REQUEST)
    play.client.fills()
    play["b1"].sends(*ANSWER)
    assert not [line for line in play.happened() if line.startswith("b2")]
    play.client.drains()
    assert play.happened() == ["b2 dialed", "b2 got POST"]


def test_too_much_that_comes_early_costs_the_connection_not_the_answer(play: Play) -> None:
    play.client.sends(REQUEST, b"x" * 140_000)
    play["b1"].sends(*ANSWER)
    assert play.happened()[:4] == [*SENT, *WHOLE]
    play.passes(LINGER_S)
    assert play.client.closed


def test_what_a_running_request_holds_counts_until_its_end() -> None:
    """A long head, and the hashes of a long prompt. The body does not, once the answer begins."""
    long_head = REQUEST.replace(b"\r\n\r\n", b"\r\nx: " + b"a" * 9_000 + b"\r\n\r\n", 1)
    head_bytes = long_head.index(b"\r\n\r\n")
    play = Play(policy="token_cost")
    play.ejects("b2")
    play.client.sends(long_head)
    held_bytes = play.plane.bodies.held_bytes
    assert held_bytes == len(long_head) - 4
    play["b1"].sends(*ANSWER[:2])
    assert play.plane.bodies.held_bytes == head_bytes
    play["b1"].sends(*ANSWER[2:])
    assert play.plane.bodies.held_bytes == 0
    play.client.sends(chat(content="word " * 40_000))
    assert play.plane.bodies.held_bytes > 200_000
    play["b1"].sends(*ANSWER[:2])
    assert play.plane.bodies.held_bytes == HASH_BYTES * (200_000 // BLOCK_BYTES)


def test_a_body_is_asked_for_once_its_head_is_accepted(play: Play) -> None:
    head = REQUEST[:HEAD_END] + b"\r\nexpect: 100-continue\r\n\r\n"
    play.client.sends(head)
    assert play.happened() == ["client got 100"]
    play.client.sends(REQUEST[HEAD_END + 4 :])
    assert play.happened() == SENT


def test_a_body_that_is_too_large_is_not_asked_for() -> None:
    play = Play(limits={"body_bytes": 1024})
    length = b"content-length: 1025\r\nexpect: 100-continue\r\n\r\n"
    play.client.sends(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + length)
    assert play.happened() == ["client got 413, body_too_large", "counted 413 nobody"]


def test_a_chunked_body_is_counted_while_it_comes() -> None:
    play = Play(limits={"body_bytes": 1024})
    framing = b"transfer-encoding: chunked\r\n\r\n"
    play.client.sends(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + framing)
    play.client.sends(b"400\r\n" + b" " * 1024 + b"\r\n")
    assert play.happened() == []
    play.client.sends(b"1\r\n \r\n")
    assert play.happened() == ["client got 413, body_too_large", "counted 413 nobody"]


@pytest.mark.parametrize(
    ("sent", "time_s"), [(b"POST /v1", "client_head_s"), (REQUEST[:-1], "client_body_s")]
)
def test_half_a_request_has_so_much_time(sent: bytes, time_s: str) -> None:
    play = Play(timeouts={time_s: 4})
    play.client.sends(sent)
    assert play.after(3.9) == []
    assert play.after(0.2) == ["client got 408, request_timeout", "counted 408 nobody"]
    play.passes(2)  # it may still be read by who sends on
    assert play.happened() == ["client dropped"]


def test_a_connection_without_a_request_is_closed_after_a_while() -> None:
    play = Play(timeouts={"client_idle_s": 30})
    assert play.after(29.9) == []
    assert play.after(0.2) == ["client closed"]


@pytest.mark.parametrize(
    ("sent", "counted"), [(b"POST", []), (REQUEST[:-1], ["counted 499 nobody"])]
)
def test_a_client_leaves_before_its_request_is_whole(
    play: Play, sent: bytes, counted: list[str]
) -> None:
    play.client.sends(sent)
    play.client.closes()
    assert sorted(play.happened()) == ["client dropped", *counted]


def test_the_end_of_a_drain_tells_who_is_still_sending(play: Play) -> None:
    play.client.sends(REQUEST[:-1])
    for client in [*play.plane.clients]:
        client.break_off()
    assert play.happened()[0] == "client got 503, draining"


def test_what_is_not_canonical_is_refused_and_closed(play: Play) -> None:
    play.client.sends(b"GET /health HTTP/1.1\r\nhost: x\r\nfoo : y\r\n\r\n")
    assert play.happened() == ["client got 400, invalid_request", "counted 400 nobody"]
    play.client.sends(REQUEST)  # whatever this is
    assert play.happened() == []


def test_a_refused_path_does_not_cost_the_connection(play: Play) -> None:
    play.client.sends(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n")
    assert play.happened() == ["client got 404, unknown_path", "counted 404 nobody"]
    play.client.sends(REQUEST)
    assert play.happened() == SENT


def test_a_body_that_nobody_can_read_is_refused_before_a_backend_is_chosen(play: Play) -> None:
    play.client.sends(REQUEST.replace(b"{", b"[", 1))
    assert play.happened() == ["client got 400, invalid_request", "counted 400 nobody"]


def test_a_refused_body_that_goes_on_is_not_read_and_ends_with_no_reset(play: Play) -> None:
    """A proxy before this one that still sends it would take penstock for dead."""
    head = b"POST /v1/nope HTTP/1.1\r\nhost: x\r\ncontent-length: 99000000\r\n\r\n"
    play.client.sends(head)
    assert "client got 413, body_too_large" in play.happened()
    for _ in range(LINGER_BYTES_MAX // 1_000_000 + 1):
        play.client.sends(bytes(1_000_000))
    assert play.happened() == ["client is not read"]
    play.passes(LINGER_S + 0.1)
    assert play.client.closed


def test_health_is_answered_here_also_twice_in_one_read(play: Play) -> None:
    play.client.sends(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
    assert play.happened()[:2] == ["client got 200, 15 bytes"] * 2


def test_a_client_asks_that_its_connection_be_closed(play: Play) -> None:
    play.client.sends(chat(head=b"connection: close\r\n"))
    play["b1"].sends(*ANSWER)
    assert play.happened() == [*SENT, *WHOLE, "client closed", "counted 200 b1"]


# To HTTP/1.0 a close says that an answer is whole -----------------------------------------------

OLD = REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0", 1)


def test_an_old_client_gets_a_close_at_the_end(play: Play) -> None:
    play.client.sends(OLD)
    play["b1"].sends(*ANSWER)
    assert play.happened() == [*SENT, WHOLE[0], "client closed", "counted 200 b1"]


def test_an_old_client_gets_a_reset_where_its_answer_breaks(play: Play) -> None:
    play.client.sends(OLD)
    play.streams("b1", "a")
    play["b1"].resets()
    told = ["client got 200, a", "b1 failed: cut", "client dropped", "counted 200 b1"]
    assert play.happened() == [*SENT, *told]


@pytest.mark.parametrize("taken", [True, False])
def test_a_body_that_its_backend_has_not_taken_is_counted_until_the_end(taken: bool) -> None:
    """A backend that answers at once and reads nothing must not free what is still held."""
    play = Play()
    request = chat(f'"pad":"{"x" * 100_000}"')
    play.client.sends(request)
    assert play.plane.bodies.held_bytes > 100_000
    play["b1"].unsent_bytes = 0 if taken else 50_000
    play.streams("b1", "a")
    assert (play.plane.bodies.held_bytes == 0) is taken
    play.ends("b1", "b")
    assert play.plane.bodies.held_bytes == 0
    assert "client got end" in play.happened()
