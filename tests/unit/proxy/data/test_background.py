"""A response that is made in the background keeps its place at its backend until it is over."""

import gc
from collections.abc import Iterator

import pytest

from penstock.balancing.backend import State
from penstock.balancing.lease import Lease
from penstock.proxy.data.background import CLIENT_MAX
from tests.unit.proxy.data.playbook import Play, plain

LIMIT_TOKENS = 2_000


@pytest.fixture
def play() -> Iterator[Play]:
    play = Play(backends=1)
    yield play
    play.passes(60.0)
    assert not len(play.plane.background)
    play.close()


def begins(play: Play, name: bytes = b"resp_1", status: bytes = b"queued") -> None:
    """A client asks for a response, and is told that it is made later."""
    body = b'{"input":"x","background":true,"max_output_tokens":%d}' % LIMIT_TOKENS
    line = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
    play.client.sends(line % (len(body), body))
    play["b1"].sends(plain("200 OK", response(name, status)))


def asks(play: Play, name: bytes, status: bytes, path: bytes = b"") -> None:
    """It asks for that response and is told so."""
    method = b"POST" if path else b"GET"
    head = b"%b /v1/responses/%b%b HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    play.client.sends(head % (method, name, path))
    play["b1"].sends(plain("200 OK", response(name, status)))


def response(name: bytes, status: bytes) -> bytes:
    return b'{"id":"%b","object":"response","status":"%b","output":[]}' % (name, status)


def running(play: Play) -> int:
    return play.backends[0].own.requests


@pytest.mark.parametrize("status", [b"completed", b"failed", b"incomplete", b"cancelled"])
def test_it_is_over_when_its_backend_says_so(play: Play, status: bytes) -> None:
    begins(play)
    assert running(play) == 1
    asks(play, b"resp_1", b"in_progress")
    assert running(play) == 1
    asks(play, b"resp_1", status)
    assert running(play) == 0


def test_it_is_over_when_it_is_cancelled(play: Play) -> None:
    begins(play)
    asks(play, b"resp_1", b"cancelled", b"/cancel")
    assert running(play) == 0


def test_what_another_one_becomes_says_nothing_of_it(play: Play) -> None:
    begins(play, b"resp_1")
    begins(play, b"resp_2")
    asks(play, b"resp_2", b"completed")
    assert running(play) == 1


def test_it_is_over_when_there_was_time_for_its_longest_answer(play: Play) -> None:
    begins(play)
    backend = play.backends[0]
    longest_s = LIMIT_TOKENS * backend.decode_speed.itl_s(0)
    play.passes(0.9 * longest_s)
    assert running(play) == 1
    play.passes(longest_s)
    assert running(play) == 0


def test_two_with_one_id_are_two(play: Play) -> None:
    """Clients of vLLM may choose the ids of their responses."""
    begins(play)
    begins(play)
    assert running(play) == 2
    asks(play, b"resp_1", b"completed")
    assert running(play) == 1


def test_one_that_is_whole_at_once_leaves_nothing(play: Play) -> None:
    begins(play, status=b"completed")
    assert running(play) == 0


def test_of_one_client_only_so_many_are_kept(play: Play) -> None:
    for number in range(CLIENT_MAX + 5):
        begins(play, b"resp_%d" % number)
    assert running(play) == len(play.plane.background) == CLIENT_MAX
    asks(play, b"resp_0", b"completed")
    begins(play, b"resp_again")
    assert running(play) == CLIENT_MAX


def test_the_clients_leaving_changes_nothing(play: Play) -> None:
    begins(play)
    play.client.closes()
    assert running(play) == 1


def leases() -> int:
    gc.collect()
    return sum(isinstance(each, Lease) for each in gc.get_objects())


def test_of_those_that_are_over_nothing_is_kept(play: Play) -> None:
    """Their time would have lasted for minutes."""
    before = leases()
    for number in range(50):
        begins(play, b"resp_%d" % number)
        asks(play, b"resp_%d" % number, b"cancelled", b"/cancel")
    assert leases() <= before + 1  # the connection's last one


def test_it_is_over_when_its_engine_does_not_know_it(play: Play) -> None:
    """As an engine answers that has restarted unseen."""
    begins(play)
    play.client.sends(b"GET /v1/responses/resp_1 HTTP/1.1\r\nhost: x\r\n\r\n")
    play["b1"].sends(plain("404 Not Found", b'{"error":{"message":"not found"}}'))
    assert running(play) == 0


def test_it_is_over_when_its_backend_is_out(play: Play) -> None:
    begins(play)
    play.backends[0].state = State.EJECTED
    play.passes(1.5)
    assert running(play) == 0
    play.backends[0].state = State.READY


def test_it_is_over_when_its_engine_has_restarted(play: Play) -> None:
    begins(play)
    play.passes(1.5)
    assert running(play) == 1
    play.backends[0].restarted()
    play.passes(1.5)
    assert running(play) == 0


def test_a_long_conversation_stays_as_long_when_it_is_asked_for(play: Play) -> None:
    begins(play)
    owners, now_s = play.plane.gate.owners, play.loop.now_s
    tokens = owners.tokens_of("resp_1", "", now_s)
    assert tokens > 0
    asks(play, b"resp_1", b"completed")
    assert owners.tokens_of("resp_1", "", now_s) == tokens
