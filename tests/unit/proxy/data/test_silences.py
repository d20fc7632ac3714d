"""Streams that fall silent after their first token."""

from itertools import pairwise

import pytest

from penstock.balancing.backend import State
from penstock.proxy.data.relay import FREE_BYTES
from tests.unit.proxy.data.playbook import COMMENT, DONE, STREAM, Play, chat, chunk, token

BROKEN = ["client got stream_broken", "client closed", "counted 200 b1"]
PINGED = ["client got ping"]


@pytest.fixture
def begun(play: Play) -> Play:
    """A stream has its first token."""
    return begins(play)


def begins(play: Play) -> Play:
    play.client.sends(chat())
    play.streams("b1", "a")
    play.happened()
    return play


def passes(play: Play, time_s: float, comments: bool = False) -> list[str]:
    """Time passes, and the proxy measures itself meanwhile. What happened?"""
    for _ in range(round(time_s)):
        play.passes(1.0)
        if comments and not play["b1"].closed:
            play["b1"].sends(COMMENT)
        play.plane.measure(play.loop.now_s)
        play.turns()
    return play.happened()


def test_a_silent_stream_gets_a_ping_before_a_balancer_closes_it(begun: Play) -> None:
    at_s = [0.0]
    for second in range(1, 331):
        happened = passes(begun, 1.0)
        assert happened in ([], PINGED)
        if happened:
            at_s.append(float(second))
    assert all(20.0 <= later - before <= 26.0 for before, later in pairwise(at_s))
    assert at_s[-1] >= 305.0
    begun.ends("b1", "b")
    assert begun.happened() == ["client got b [DONE]", "client got end", "counted 200 b1"]
    assert begun.backends[0].failures_total == 0


def test_a_stream_with_tokens_gets_none(begun: Play) -> None:
    for _ in range(10):
        passes(begun, 15)
        begun.says("b1", "b")
    assert set(begun.happened()) <= {"client got b"}


def test_what_the_client_is_sent_by_its_backend_is_as_good_as_a_ping(begun: Play) -> None:
    assert "client got ping" not in passes(begun, 120, comments=True)


def test_a_ping_stands_between_events(begun: Play) -> None:
    event = token("whole")
    body = event.split(b"\r\n", 1)[1].removesuffix(b"\r\n")
    begun["b1"].sends(chunk(body[:30]))
    assert passes(begun, 26) == PINGED
    begun["b1"].sends(chunk(body[30:]))
    assert begun.happened() == ["client got whole"]


def test_no_ping_stands_within_a_large_event(begun: Play) -> None:
    begun["b1"].sends(chunk(b'data: {"choices":[{"delta":{"content":"' + b"x" * 5 * FREE_BYTES))
    begun.happened()
    assert passes(begun, 120) == []


def test_no_ping_follows_the_end(begun: Play) -> None:
    begun["b1"].sends(DONE)
    begun.happened()
    assert passes(begun, 60) == []


def test_who_takes_nothing_gets_none() -> None:
    play = Play(timeouts={"client_stall_s": 300})
    begins(play)
    play.says("b1", "b")
    play.client.fills()
    assert "client got ping" not in passes(play, 60)


def test_one_that_thinks_unseen_for_longer_than_a_first_token_may_take_goes_on(play: Play) -> None:
    """vLLM sends the role with the first token, also where its parser hides that."""
    play.client.sends(chat())
    role = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
    play["b1"].sends(STREAM, chunk(role))
    passes(play, 300)
    play.ends("b1", "a")
    assert "counted 200 b1" in play.happened()


def test_after_idle_s_it_ends(begun: Play) -> None:
    passes(begun, 590)
    begun.happened()
    assert passes(begun, 12)[-5:] == ["b1 dropped", "b1 failed: idle", *BROKEN]


@pytest.mark.parametrize("comments", [False, True])
@pytest.mark.parametrize(
    ("state", "reason"),
    [(State.EJECTED, "hung"), (State.SUSPECT, "hung"), (State.EJECTED, "timeout")],
)
def test_at_a_backend_that_hangs_it_ends_though_comments_come(
    begun: Play, state: State, reason: str, comments: bool
) -> None:
    begun.backends[0].state, begun.backends[0].reason = state, reason
    happened = passes(begun, 30, comments)
    assert happened[-5:] == ["b1 dropped", "b1 failed: hung", *BROKEN]
    assert begun.metrics.stream_failures["hung",] == 1
    assert begun.backends[0].failures_total == 0  # the probes have judged it


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        *((State.SUSPECT, "failing"), (State.EJECTED, "failing"), (State.READY, "")),
        (State.SUSPECT, "timeout"),  # one answer of /health was late
    ],
)
def test_at_any_other_backend_it_goes_on(begun: Play, state: State, reason: str) -> None:
    begun.backends[0].state, begun.backends[0].reason = state, reason
    assert set(passes(begun, 90)) == set(PINGED)


def test_at_a_backend_that_hangs_one_with_tokens_goes_on(begun: Play) -> None:
    begun.backends[0].state, begun.backends[0].reason = State.SUSPECT, "hung"
    for _ in range(5):
        passes(begun, 15)
        begun.says("b1", "b")
    assert set(begun.happened()) == {"client got b"}
