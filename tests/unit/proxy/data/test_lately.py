"""Which first tokens and failures count among a backend's last minutes, and when."""

import errno

import pytest

from penstock.proxy.telemetry.pool_metrics import Lately
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Play, chat, plain, token


@pytest.fixture
def play() -> Play:
    timeouts = {"first_byte_s": 60.0, "hold_s": 5.0}
    return Play(2, timeouts=timeouts)


def lately(play: Play, name: str) -> Lately:
    found = play.metrics.of("p").backend(name).lately
    found.advance(play.loop.now_s)
    return found


def counted(play: Play, name: str) -> tuple[int, float | None]:
    found = lately(play, name)
    return found.first_tokens, found.ttft_s(0.95)


def test_a_first_token_counts_when_it_comes_and_once(play: Play) -> None:
    play.client.sends(chat())
    play.passes(1)
    assert counted(play, "b1") == (0, None)
    play["b1"].sends(STREAM, token("a"))
    count, ttft_s = counted(play, "b1")
    assert count == 1
    assert ttft_s is not None
    assert 1.0 <= ttft_s <= 1.25
    play["b1"].sends(token("b"), DONE, END)
    assert counted(play, "b1")[0] == 1
    assert counted(play, "b2")[0] == 0


def test_a_stream_that_was_held_counts_too(play: Play) -> None:
    play.client.sends(chat())
    play["b1"].sends(STREAM)
    play.passes(8)  # the client has its 200 and pings
    play["b1"].sends(token("a"), DONE, END)
    count, ttft_s = counted(play, "b1")
    assert (count, ttft_s is not None and 8.0 <= ttft_s <= 10.0) == (1, True)


def test_a_client_that_sends_slowly_is_no_slow_backend(play: Play) -> None:
    request = chat()
    play.client.sends(request[:-5])
    play.passes(10)
    play.client.sends(request[-5:])
    play.answers("b1")
    count, ttft_s = counted(play, "b1")
    assert (count, ttft_s is not None and ttft_s < 0.1) == (1, True)


def test_a_plain_answer_has_no_first_token(play: Play) -> None:
    play.client.sends(chat(stream=False))
    play["b1"].sends(plain("200 OK", b'{"choices":[{"text":"a"}]}'))
    assert counted(play, "b1")[0] == 0


def test_a_failure_counts_at_the_backend_that_failed_with_its_reason(play: Play) -> None:
    play.client.sends(chat())
    play["b1"].resets()
    play.answers("b2")
    failed, served = lately(play, "b1"), lately(play, "b2")
    assert (failed.failures, failed.failure, failed.failed_s) == (1, "reset", play.loop.now_s)
    assert (served.failures, served.failure, served.first_tokens) == (0, "", 1)


def test_a_lack_of_our_own_is_no_failure_of_a_backend(play: Play) -> None:
    play.down = {"b1": errno.EADDRNOTAVAIL}
    play.client.sends(chat())
    play.answers("b2")
    assert lately(play, "b1").failures == 0
    assert play.metrics.of("p").backend("b1").attempts == {"ports": 1}


def test_a_client_that_leaves_or_asks_for_what_is_wrong_is_no_failure(play: Play) -> None:
    play.client.sends(chat(stream=False))
    play["b1"].sends(plain("400 Bad Request", b'{"error":{}}'))
    play.client.sends(chat())
    play.client.closes()
    assert [lately(play, name).failures for name in ("b1", "b2")] == [0, 0]
