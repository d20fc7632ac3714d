"""Transcripts of streams that open without a token: what that frees, and what it must not."""

import pytest

from penstock.balancing.backend import Backend
from penstock.proxy.data.event_relay import SHOWN_WITHIN_S
from tests.unit.proxy.data.playbook import (
    COMMENT,
    DONE,
    END,
    MEASURED,
    STREAM,
    Play,
    chat,
    chunk,
    token,
)

# A prompt of some 5,000 tokens: more than a backend is sent beforehand.
LONG = "all work and no play " * 1_000
ROLE = chunk(
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"finish_reason":null}]}\n\n'
)


@pytest.fixture
def play() -> Play:
    return Play(1, admission={"enabled": True})


def asked(play: Play) -> Backend:
    play.client.sends(chat(content=LONG))
    assert play.happened() == ["b1 dialed", "b1 got POST"]
    return play.backends[0]


def later(play: Play, time_s: float) -> None:
    """One step of the clock: `passes` takes steps of 50 ms."""
    play.loop.now_s += time_s
    play.passes(0.0)
    play.turns()


def test_a_role_alone_sends_no_status_and_frees_the_queue(play: Play) -> None:
    backend = asked(play)
    assert backend.queued_prefill_tokens > 4_000
    play["b1"].sends(STREAM, ROLE)
    assert backend.queued_prefill_tokens > 4_000  # its token may come with the next read
    play.passes(SHOWN_WITHIN_S + 0.1)
    assert (backend.queued_prefill_tokens, backend.streams) == (0, 1)
    assert backend.active_decode_tokens > 4_000
    assert play.happened() == []
    play.passes(5.0)
    play["b1"].sends(token("a"))
    assert play.happened() == ["client got 200, a"]  # and the role before it
    play["b1"].sends(DONE, END)
    assert backend.own.idle
    assert backend.prefill_speed.samples == MEASURED


def test_what_waits_goes_as_soon_as_the_one_before_is_answering(play: Play) -> None:
    asked(play)
    second = play.connects()
    second.sends(chat(content=LONG))
    play["b1"].sends(STREAM, ROLE)
    assert play.happened() == []
    assert play.after(SHOWN_WITHIN_S + 0.1) == ["b1 dialed", "b1 got POST"]


@pytest.mark.parametrize("events", [[COMMENT], [], [chunk(b"event: ping\n\n"), COMMENT]])
def test_comments_free_nothing(play: Play, events: list[bytes]) -> None:
    backend = asked(play)
    play["b1"].sends(STREAM, *events)
    play.passes(5.0)
    assert backend.queued_prefill_tokens > 4_000


def test_half_a_role_frees_nothing(play: Play) -> None:
    backend = asked(play)
    play["b1"].sends(STREAM, ROLE[:60])
    play.passes(5.0)
    assert backend.queued_prefill_tokens > 4_000
    play["b1"].sends(ROLE[60:])
    play.passes(SHOWN_WITHIN_S + 0.1)
    assert backend.queued_prefill_tokens == 0


@pytest.mark.parametrize("gap_s", [None, 0.0, 0.03])
def test_the_speed_is_learnt_if_the_token_follows_soon(play: Play, gap_s: float | None) -> None:
    """As from vLLM: in the same read, in the next one, or a little later."""
    backend = asked(play)
    play.passes(0.5)
    if gap_s is None:
        play["b1"].sends(STREAM, ROLE, token("a"))
    else:
        play["b1"].sends(STREAM, ROLE)
        later(play, gap_s)
        assert play.happened() == []
        play["b1"].sends(token("a"))
    assert play.happened() == ["client got 200, a"]
    assert backend.queued_prefill_tokens == 0
    play.passes(1.0)
    play["b1"].sends(DONE, END)
    assert backend.prefill_speed.samples == MEASURED + 1


def test_who_leaves_while_the_model_thinks_leaves_nothing(play: Play) -> None:
    backend = asked(play)
    play["b1"].sends(STREAM, ROLE)
    play.passes(2.0)
    play.client.closes()
    assert play.happened() == ["client dropped", "b1 dropped", "counted 499 b1"]
    assert backend.own.idle


def test_a_stream_that_opens_and_fails_is_tried_elsewhere() -> None:
    play = Play(2)
    play.client.sends(chat())
    play["b1"].sends(STREAM, ROLE)
    play.passes(1.0)
    play["b1"].resets()
    play["b2"].sends(STREAM, ROLE, token("a"), DONE, END)
    assert "client got 200, a [DONE]" in play.happened()
