"""Requests that wait at a backend which probes then find to hang: they move, once."""

import pytest

from penstock.balancing.backend import State
from penstock.proxy.data.attempt import HUNG_LOOK_S
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Play, chat, plain, post, text, token

ELSEWHERE = ["b1 dropped", "b2 dialed", "b2 got POST"]


@pytest.fixture
def play() -> Play:
    return Play()


def hangs(play: Play, name: str = "b1", reason: str = "hung", state: State = State.EJECTED) -> None:
    """Probes have found so, and some time has passed."""
    for backend in play.backends:
        if backend.name == name:
            backend.state, backend.reason = state, reason
    play.passes(HUNG_LOOK_S + 0.1)


def asked(play: Play, stream: bool = True) -> None:
    play.client.sends(chat(stream=stream))
    assert play.happened() == ["b1 dialed", "b1 got POST"]


@pytest.mark.parametrize("reason", ["hung", "timeout"])
@pytest.mark.parametrize("stream", [True, False])
def test_they_move_to_another(play: Play, stream: bool, reason: str) -> None:
    asked(play, stream)
    hangs(play, reason=reason)
    assert play.happened() == ["b1 dropped", "b1 failed: hung", *ELSEWHERE[1:]]
    backend = play.backends[0]  # nothing more is said against it
    assert (backend.failures_in_row, backend.penalty.read(play.loop.now_s)) == (0, 0.0)
    told = (STREAM, token("a"), DONE, END) if stream else (text("a"),)
    play["b2"].sends(*told)
    assert play.happened()[-1] == "counted 200 b2"


def test_those_that_were_promised_a_stream_move_too(play: Play) -> None:
    asked(play)
    play.streams("b1")
    assert play.after(20.1) == ["client got 200, ping"]
    hangs(play)
    assert play.happened()[-1] == "b2 got POST"
    play.answers("b2")
    assert play.happened()[0] == "client got a [DONE]"


@pytest.mark.parametrize("reason", ["draining", "unreachable", "failing", "asleep", ""])
def test_at_one_that_may_yet_answer_they_stay_and_so_does_an_answer_that_has_begun(
    play: Play, reason: str
) -> None:
    asked(play)
    if not reason:
        play.streams("b1", "a")
    hangs(play, reason=reason or "hung")
    assert play.happened() == ["client got 200, a"] * (not reason)


def test_a_doubt_moves_none(play: Play) -> None:
    asked(play)
    hangs(play, state=State.SUSPECT)
    assert play.happened() == []


@pytest.mark.parametrize("state", [State.SUSPECT, State.EJECTED])
def test_none_moves_where_the_other_is_in_doubt(play: Play, state: State) -> None:
    """The network fails, and all fall silent one after the other."""
    play.backends[1].state = state
    play.backends[1].doubted = True
    play.backends[0].doubted = False
    asked(play)
    hangs(play, reason="timeout")
    assert play.happened() == []
    play.answers("b1")
    assert play.happened()[-1] == "counted 200 b1"


def test_none_moves_twice() -> None:
    """It may be what engines hang of."""
    play = Play(backends=3)
    asked(play)
    hangs(play, "b1")
    assert play.happened()[-1] == "b2 got POST"
    hangs(play, "b2")
    assert play.happened() == []
    play.answers("b2")


def test_one_that_was_sent_there_as_the_last_resort_stays(play: Play) -> None:
    for backend in play.backends:
        backend.state, backend.reason, backend.doubted = State.EJECTED, "hung", True
    asked(play)
    play.backends[1].state = State.READY
    assert play.after(HUNG_LOOK_S + 0.1) == []


def test_what_belongs_to_that_backend_stays(play: Play) -> None:
    """Only it holds the stored response."""
    body = b'{"input":"x"}'
    play.client.sends(post("/v1/responses", body))
    response = b'{"id":"resp_1","object":"response","status":"completed","output":[1]}'
    play["b1"].sends(plain("200 OK", response))
    play.passes(0.1)  # its connection rests
    play.happened()
    body = b'{"input":"y","previous_response_id":"resp_1"}'
    play.client.sends(post("/v1/responses", body))
    assert play.happened() == ["b1 got POST"]
    hangs(play)
    assert play.happened() == []
