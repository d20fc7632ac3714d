"""Transcripts of requests that wait for room at their backend, and of those that are refused."""

import pytest

from penstock.balancing.backend import Backend
from penstock.proxy.data.event_relay import SHOWN_WITHIN_S
from penstock.proxy.telemetry.access_log import add_request
from tests.unit.proxy.data.playbook import (
    COMMENT,
    DONE,
    END,
    MEASURED,
    STREAM,
    Client,
    Play,
    chat,
    chunk,
    plain,
    token,
)

# A prompt of some 5,000 tokens: more than a backend is sent beforehand.
LONG = "all work and no play " * 1_000
# Its prefill takes six seconds.
VERY_LONG = 20 * LONG
HOLDS = {"enabled": True}


@pytest.fixture
def play() -> Play:
    return Play(1, admission=HOLDS)


def busy(play: Play, content: str = LONG) -> None:
    """b1 has a long prompt to prefill."""
    play.client.sends(chat(content=content))
    assert play.happened() == ["b1 dialed", "b1 got POST"]


def another(play: Play, head: bytes = b"", content: str = LONG) -> Client:
    client = play.connects()
    client.sends(chat(head=head, content=content))
    return client


def test_a_request_waits_until_its_backend_has_begun_the_one_before(play: Play) -> None:
    busy(play)
    another(play)
    assert play.happened() == []
    assert play.plane.admission.waiting == 1
    play.streams("b1", "a")
    assert play.happened() == ["client got 200, a", "b1 dialed", "b1 got POST"]
    play.answers("b1", "b")
    assert play.happened() == [
        "client got 200, b [DONE]",
        "client got end",
        "counted 200 b1",
    ]


def test_what_waits_is_sent_when_a_client_before_it_leaves(play: Play) -> None:
    busy(play)
    another(play)
    play.client.closes()
    assert play.happened() == [
        "client dropped",
        "b1 dropped",
        "b1 dialed",
        "b1 got POST",
        "counted 499 b1",
    ]


def test_a_client_that_leaves_while_it_waits_costs_nothing(play: Play) -> None:
    busy(play)
    another(play).closes()
    assert play.happened() == ["client dropped", "counted 499 nobody"]
    assert play.plane.admission.waiting == 0
    assert play.metrics.client_aborts["queued",] == 1


def test_a_stream_that_waits_gets_its_200_and_pings() -> None:
    play = Play(1, admission=HOLDS, timeouts={"hold_s": 1.0})
    busy(play, VERY_LONG)
    another(play)
    assert play.after(1.2) == ["client got 200, ping"] * 2  # the first one waits for its token


def test_what_would_wait_too_long_is_refused_at_once() -> None:
    classes = [{"name": "standard", "max_wait_s": 0.5}]
    play = Play(1, admission=HOLDS | {"classes": classes})
    busy(play)
    another(play)
    assert play.happened() == ["client got 429, overloaded", "counted 429 nobody"]
    assert play.metrics.shed["wait", "standard"] == 1


def test_what_its_client_allows_too_little_time_for_is_refused_for_that(play: Play) -> None:
    busy(play)
    another(play, b"x-request-timeout: 0.5\r\n")
    assert play.happened() == ["client got 429, deadline", "counted 429 nobody"]
    assert play.metrics.shed["deadline", "standard"] == 1


def test_a_stream_that_has_its_200_waits_for_as_long_as_its_client() -> None:
    """SDKs try a 429 again, and no error after a 200."""
    classes = [{"name": "standard", "max_wait_s": 3.0}]
    play = Play(1, admission=HOLDS | {"classes": classes}, timeouts={"hold_s": 1.0})
    play.backends[0].max_requests = 1
    busy(play)
    another(play)
    assert play.after(9.0) == ["client got 200, ping", "client got 200, ping"]
    play.answers("b1")
    assert "b1 got POST" in play.happened()
    play.answers("b1", "b")
    assert "client got b [DONE]" in play.happened()


def test_a_short_prompt_passes_while_there_is_room_for_it(play: Play) -> None:
    play.client.sends(chat())
    assert play.happened() == ["b1 dialed", "b1 got POST"]
    another(play, content="x")
    assert play.happened() == ["b1 dialed", "b1 got POST"]


def test_the_higher_class_is_sent_first_if_clients_are_trusted() -> None:
    play = Play(1, admission=HOLDS | {"trust_clients": True})
    busy(play)
    clients = [
        another(play, b"x-penstock-priority: %b\r\n" % name)
        for name in (b"batch", b"standard", b"interactive")
    ]
    names = []
    for _ in clients:
        play.answers("b1")
        names.append(play["b1"].head)
        play.happened()
    for client in clients:
        client.closes()
    assert [b"x-vllm-priority: -1" in head for head in names] == [True, False, False]
    assert [b"x-vllm-priority: 1" in head for head in names] == [False, False, True]


def test_a_client_may_ask_for_a_lower_class_only(play: Play) -> None:
    busy(play)
    another(play, b"x-penstock-priority: batch\r\n")
    another(play, b"x-penstock-priority: interactive\r\n")
    counts = {name: requests for name, requests, _ in play.plane.queued()}
    assert counts == {"interactive": 0, "standard": 1, "batch": 1}


def test_a_request_that_failed_elsewhere_goes_before_those_that_came_later() -> None:
    play = Play(2, admission=HOLDS)
    play.client.sends(chat(content=LONG))
    _second, _third = another(play), another(play)
    assert play.happened() == ["b1 dialed", "b1 got POST", "b2 dialed", "b2 got POST"]
    play["b1"].sends(plain("503 Busy"))
    assert "b2 got POST" not in play.happened()
    play.answers("b2", "b")
    happened = play.happened()
    assert happened.count("b2 got POST") == 1
    play.answers("b2", "first")
    assert b"first" in play.client.written


def test_the_end_of_a_drain_ends_what_waits(play: Play) -> None:
    busy(play)
    another(play)
    for client in list(play.plane.clients):
        client.break_off()
    play.turns()
    assert play.plane.admission.waiting == 0


def test_the_own_time_of_a_client_ends_its_wait(play: Play) -> None:
    busy(play)
    another(play, b"x-stainless-read-timeout: 2\r\n")
    assert play.plane.admission.waiting == 1
    play.passes(2.5)
    assert any(line.startswith("client got 4") for line in play.happened())
    assert play.plane.admission.waiting == 0


def test_without_admission_nothing_waits() -> None:
    play = Play(1, admission={"enabled": False})
    busy(play)
    another(play)
    assert play.happened() == ["b1 dialed", "b1 got POST"]


def test_the_access_line_tells_how_long_it_waited(play: Play) -> None:
    busy(play, VERY_LONG)
    second = another(play)
    play.passes(0.4)
    exchange = second.exchange
    record = exchange.request.record
    play.streams("b1", "a")
    assert record.waited_s == pytest.approx(0.4, abs=0.01)
    line: dict[str, object] = {}
    add_request(line, record, None, stream=True)
    assert line["waited_ms"] == pytest.approx(400, abs=10)


def test_who_is_let_through_is_counted_by_whether_it_had_to_wait(play: Play) -> None:
    busy(play)
    another(play, b"x-penstock-priority: batch\r\n")
    admitted = play.metrics.admitted
    assert list(admitted.items()) == [(("standard", "no"), 1)]
    play.answers("b1")
    assert list(admitted.items()) == [(("batch", "yes"), 1), (("standard", "no"), 1)]


def test_what_was_predicted_is_compared_with_the_first_token(play: Play) -> None:
    busy(play)
    second = another(play)
    exchange = second.exchange
    predicted_s = exchange.request.record.predicted_s
    assert predicted_s > 0.1
    play.passes(0.2)
    play.answers("b1")
    ratio = play.metrics.predicted_ratio
    assert sum(ratio.counts) == 0  # the first one did not wait
    play.passes(0.3)
    play.answers("b1", "b")
    play.happened()
    assert sum(ratio.counts) == 1
    assert ratio.total == pytest.approx(predicted_s / 0.5, rel=0.05)


def test_a_request_that_failed_is_counted_once_and_teaches_nothing_of_predictions() -> None:
    play = Play(2, admission=HOLDS)
    play.client.sends(chat(content=LONG))
    another(play)
    play["b1"].sends(plain("503 Busy"))  # the first one waits now
    assert play.plane.admission.waiting == 1
    play.answers("b2", "b")
    play.passes(0.2)
    play.answers("b2")
    play.happened()
    assert b'"a"' in play.client.written
    assert list(play.metrics.admitted.items()) == [(("standard", "no"), 2)]
    assert sum(play.metrics.predicted_ratio.counts) == 0


def test_one_that_is_tried_again_at_once_is_counted_once() -> None:
    play = Play(2, admission=HOLDS)
    play.client.sends(chat())
    play["b1"].sends(plain("503 Busy"))
    assert "b2 got POST" in play.happened()
    assert list(play.metrics.admitted.items()) == [(("standard", "no"), 1)]


def test_a_client_sets_no_priority_of_its_own() -> None:
    play = Play(1, admission=HOLDS)
    play.client.sends(chat('"priority":-1000'))
    assert b'"priority":0' in play["b1"].body
    assert b"1000" not in play["b1"].body


# Streams that open without a token: what that frees, and what it must not ------------------------

ROLE = chunk(
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"finish_reason":null}]}\n\n'
)


def asked(play: Play) -> Backend:
    busy(play)
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
    play.says("b1", "a")
    assert play.happened() == ["client got 200, a"]  # and the role before it
    play.ends("b1")
    assert backend.own.idle
    assert backend.prefill_speed.samples == MEASURED


def test_what_waits_goes_as_soon_as_the_one_before_is_answering(play: Play) -> None:
    asked(play)
    another(play)
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
        play.says("b1", "a")
    assert play.happened() == ["client got 200, a"]
    assert backend.queued_prefill_tokens == 0
    play.passes(1.0)
    play.ends("b1")
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
