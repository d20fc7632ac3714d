"""Transcripts of requests that a backend refuses because it has too much to do."""

from typing import Any

import pytest

from penstock.balancing.admission.queued_request import WaitReason
from penstock.proxy.telemetry.record import TRIES_MAX
from tests.unit.proxy.data.playbook import (
    STREAM,
    Client,
    Play,
    Upstream,
    chat,
    chunk,
    get,
    keyed,
    plain,
    pool,
    tenants,
    text,
    token,
)

ELSEWHERE = ["b2 dialed", "b2 got POST"]
HOLDS: dict[str, Any] = {"enabled": True}
SENDS: dict[str, Any] = {"enabled": False}
QUEUE_FULL = b'data: {"error":{"message":"busy","type":"Service Unavailable","code":503}}\n\n'


def busy(status: int = 429, after_s: int | None = None) -> bytes:
    fields = [b"retry-after: %d" % after_s] if after_s is not None else []
    return plain(f"{status} Busy", b'{"error":{"code":"theirs"}}', *fields)


REFUSALS = {
    "429": (busy(429), 1.0),
    "503": (busy(503), 1.0),
    "429 with Retry-After": (busy(429, 5), 5.0),
    "503 with Retry-After": (busy(503, 5), 5.0),
    "429 in a stream": (STREAM + chunk(QUEUE_FULL.replace(b"503", b"429")), 1.0),
    "503 in a stream": (STREAM + chunk(QUEUE_FULL), 1.0),
}


def asks(play: Play, client: Client | None = None) -> list[str]:
    """A request comes. Which backends got it?"""
    play.happened()
    (client or play.connects()).sends(chat())
    return [line[:2] for line in play.happened() if line.endswith(" got POST")]


def ends(play: Play, *names: str) -> None:
    for name in names:
        play.answers(name)
    play.happened()


@pytest.mark.parametrize("kind", REFUSALS)
def test_another_backend_is_tried_and_the_busy_one_left_alone_for_its_time(
    play: Play, kind: str
) -> None:
    refusal, rest_s = REFUSALS[kind]
    assert asks(play, play.client) == ["b1"]
    play["b1"].sends(refusal)
    assert [line for line in play.happened() if line.startswith("b2")] == ELSEWHERE
    ends(play, "b2")
    for _ in range(3):
        assert asks(play) == ["b2"]
        ends(play, "b2")
    play.passes(rest_s - 0.1)
    assert asks(play) == ["b2"]
    ends(play, "b2")
    play.passes(0.2)
    assert {*asks(play), *asks(play)} == {"b1", "b2"}


def test_a_refusal_for_load_is_no_failure_of_the_backend(play: Play) -> None:
    for _ in range(6):  # more than eject one that fails
        if asks(play) == ["b1"]:
            play["b1"].sends(busy())
        ends(play, "b2")
        play.passes(1.1)
    assert play.metrics.attempts["busy",] >= 3
    backend = play.backends[0]
    assert (backend.failures_total, backend.failures_in_row) == (0, 0)
    assert backend.penalty.read(play.loop.now_s, "") == 0.0
    lately = play.metrics.times(backend, None).backend.lately
    assert lately.failure == ""


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("asked_s", "told_s"), [(7, 7), (3_600, 59)])
def test_all_refuse_and_the_client_is_told_the_longest_wait_below_a_minute(
    status: int, asked_s: int, told_s: int
) -> None:
    play = Play(2, admission=SENDS)
    asks(play, play.client)
    play["b1"].sends(busy(status, asked_s))
    play["b2"].sends(busy(status, 3))
    told = ["client got 429, overloaded", "client closed", "counted 429 b2"]
    assert play.happened()[-3:] == told
    assert b"\r\nretry-after: %d\r\n" % told_s in play.client.written.lower()
    assert play.metrics.shed["busy", "0"] == 1
    client = play.connects()
    assert asks(play, client) == []
    assert client.written.startswith(b"HTTP/1.1 429 ")


def test_with_admission_it_waits_until_a_backend_may_be_asked_again() -> None:
    play = Play(2, admission=HOLDS)
    asks(play, play.client)
    play["b1"].sends(busy(503, 3))
    play["b2"].sends(busy(429))
    play.happened()
    assert play.after(0.9) == []
    assert play.client.exchange.request.record.waits_for == WaitReason.BUSY
    play.passes(0.2)
    assert "b2 got POST" in play.happened()
    ends(play, "b2")
    assert play.client.written.startswith(b"HTTP/1.1 200 ")
    assert list(play.metrics.admitted.items()) == [(("standard", "no"), 1)]


def test_with_admission_it_is_refused_at_once_if_all_ask_for_more_time_than_it_has() -> None:
    play = Play(1, admission=HOLDS)
    asks(play, play.client)
    play["b1"].sends(busy(503, 50))
    assert "client got 429, overloaded" in play.happened()


def test_one_request_tries_whether_there_is_room_again_and_the_others_follow() -> None:
    play, sent = Play(1, admission=HOLDS), list[Upstream]()
    play.asked = lambda name, upstream: sent.append(upstream)  # type: ignore[method-assign]

    def refused() -> int:
        """How many were sent. All of them are refused."""
        count = len(sent)
        for _ in range(count):
            sent.pop(0).sends(busy())
        return count

    for _ in range(4):
        play.connects().sends(chat())
    assert refused() == 4
    for _ in range(2):
        play.passes(1.1)
        assert refused() == 1
    play.passes(1.1)
    sent.pop().sends(STREAM, token("a"))
    play.passes(0.1)
    assert len(sent) == 3


def test_a_first_token_that_takes_longer_than_a_try_opens_it_again() -> None:
    play, sent = Play(1, admission=HOLDS), list[Upstream]()
    play.asked = lambda name, upstream: sent.append(upstream)  # type: ignore[method-assign]
    play.connects().sends(chat())
    sent.pop().sends(busy())
    for _ in range(5):
        play.connects().sends(chat())
    play.passes(2.5)
    assert len(sent) == 2  # each second another one tries
    sent[0].sends(STREAM, token("a"))
    play.passes(0.1)
    assert len(sent) == 6


def test_an_answer_of_500_waits_for_no_better_one() -> None:
    play = Play(1, admission=HOLDS | {"hold_for_backend_s": 30})
    asks(play, play.client)
    play["b1"].sends(plain("500 Oops", b'{"error":{"message":"theirs"}}'))
    assert any(line.startswith("client got 500") for line in play.happened())


def test_the_record_of_a_request_that_is_refused_again_and_again_stays_short() -> None:
    play = Play(1, admission=HOLDS)
    asks(play, play.client)
    record = play.client.exchange.request.record
    record.tries *= TRIES_MAX
    play["b1"].sends(busy())
    play.passes(1.1)
    assert "b1 got POST" in play.happened()
    assert len(record.tries) == TRIES_MAX
    ends(play, "b1")


def test_the_fall_back_for_overload_is_tried() -> None:
    pools = [pool("p", 1), pool("q", 2)]
    fallbacks = [{"pool": "q", "on": ["overload"]}]
    routes = [{"name": "r", "to": [{"pool": "p"}], "fallbacks": fallbacks}]
    play = Play(2, pools=pools, routes=routes, admission=SENDS)
    asks(play, play.client)
    play["b1"].sends(busy())
    assert "b2 got POST" in play.happened()
    ends(play, "b2")


def test_one_clients_refusals_close_no_backend_for_others() -> None:
    play = Play(1, tenants=tenants("one", "two", "six"), admission=SENDS)

    def status(name: str) -> bytes:
        client = play.connects()
        client.sends(chat(head=keyed(name)))
        if any(line.endswith("got POST") for line in play.happened()):
            play["b1"].sends(busy())
            return b"was sent"
        return client.written[9:12]

    assert status("one") == b"was sent"
    assert status("one") == b"429"
    assert status("two") == b"was sent"
    assert status("six") == b"429"  # two have met it: now it counts for all


def test_what_asks_for_a_stored_response_tries_each_backend_once(play: Play) -> None:
    play.client.sends(get("/v1/responses/resp_1"))
    play["b1"].sends(busy(503))
    play["b2"].sends(busy(503, 4))
    assert "client got 429, overloaded" in play.happened()


def test_a_plain_request_moves_on_too(play: Play) -> None:
    play.client.sends(chat(stream=False))
    play["b1"].sends(busy(503))
    play["b2"].sends(text("a"))
    assert "client got 200, a" in play.happened()
