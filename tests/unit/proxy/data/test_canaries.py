"""Transcripts of canaries: what is drawn to them, what counts, and how they move."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.balancing.canary.steps import Canary, Stage
from penstock.proxy.admin.canary_listing import canary_listing
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Client, chat, plain, token
from tests.unit.proxy.data.test_routing import Routed

ROUTE: dict[str, Any] = {
    "name": "versions",
    "to": [{"pool": "small"}],
    "sticky": "request",
    "canary": {
        "pool": "large",
        "steps": [50, 100],
        "every_s": 5,
        "judge": {"min_requests": 20, "clients_min": 1, "errors": 0.05}
        | dict.fromkeys(("broken", "empty", "refused", "ttft", "itl", "length")),
    },
}
ENOUGH = 600


@pytest.fixture
def play() -> Iterator[Routed]:
    playing = Routed(ROUTE)
    yield playing
    playing.close()


def canary(play: Routed) -> Canary:
    return play.plane.canaries.trials["versions"].canary


def asks(play: Routed, head: bytes = b"") -> tuple[Client, str]:
    """A client's request, and the backend that it was sent to."""
    client = play.client if not play.client.closed else play.connects()
    play.client = client
    client.sends(chat(head=head))
    exchange = client.connection._exchange
    assert exchange is not None
    return client, exchange.request.record.backend


def one(play: Routed, *, fails: str = "") -> str:
    """One request. It fails at this backend, and is answered by others."""
    client, backend = asks(play)
    if backend == fails:
        play[backend].sends(plain("502 Bad Gateway"))
        play.turns()
    else:
        play[backend].sends(STREAM, token("a"), DONE, END)
        play.turns()
    assert client.written
    return backend


def goes_on(play: Routed, requests: int = ENOUGH, *, fails: str = "") -> list[str]:
    """Requests, ten in a second."""
    drawn = []
    for _ in range(requests):
        drawn.append(one(play, fails=fails))
        play.loop.now_s += 0.1
        play.plane.measure(play.loop.now_s)
    return drawn


def test_a_version_that_is_no_worse_gets_everything(play: Routed) -> None:
    drawn = goes_on(play)
    assert canary(play).stage is Stage.PROMOTED, canary(play).why
    assert 0.35 < drawn[:100].count("b3") / 100 < 0.65
    assert set(drawn[-50:]) == {"b3"}


def test_a_version_that_fails_gets_nothing_any_more(
    play: Routed, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        drawn = goes_on(play, 200, fails="b3")
    assert canary(play).stage is Stage.ROLLED_BACK
    assert drawn.count("b3") < 60
    assert "b3" not in drawn[-50:]
    (line,) = [each.getMessage() for each in caplog.records if "rolled_back" in each.getMessage()]
    assert "route=versions stage=rolled_back percent=0 why=worse: errors" in line
    (told,) = canary_listing(play.plane.canaries.trials.values(), play.loop.now_s)
    assert (told["stage"], told["percent"]) == ("rolled_back", 0.0)


def test_an_operators_word_counts_at_once(play: Routed) -> None:
    play.plane.canaries.tell("versions", "promote")
    assert {one(play) for _ in range(20)} == {"b3"}
    play.plane.canaries.tell("versions", "abort")
    assert "b3" not in {one(play) for _ in range(20)}
    play.plane.canaries.tell("versions", "restart")
    assert "b3" in {one(play) for _ in range(20)}
    assert play.plane.canaries.tell("other", "abort") is None


def test_clients_that_leave_show_nothing(play: Routed) -> None:
    for _ in range(100):
        asks(play)
        play.client.closes()
        play.client = play.connects()
        play.loop.now_s += 0.1
        play.plane.measure(play.loop.now_s)
    assert canary(play).stage in (Stage.RUNNING, Stage.HELD)


def test_a_restart_goes_on_where_it_was(play: Routed) -> None:
    play.plane.canaries.tell("versions", "abort")
    kept = play.plane.canaries.to_state()
    again = Routed(ROUTE)
    again.plane.canaries.resume(kept)
    assert canary(again).stage is Stage.ABORTED
    assert "b3" not in {one(again) for _ in range(20)}
    again.close()
