"""Transcripts of requests that come to a fall-back of their route."""

from typing import Any

import pytest

from penstock.balancing.backend import State
from penstock.proxy.data.routing import is_served, next_fallback
from tests.unit.proxy.data.playbook import (
    DONE,
    END,
    STREAM,
    Play,
    Upstream,
    chat,
    plain,
    pool,
    token,
)
from tests.unit.proxy.data.test_routing import ALIAS, Routed, asks, record_of

CLIENTS = 40


def test_a_fall_back_that_cannot_serve_costs_no_attempt() -> None:
    """The third backend of the pool may still serve it."""
    play = Routed(ALIAS)
    play.ejects("b3")
    client = asks(play)
    play.fails("b1", "b2")
    assert b"HTTP/1.1 502" in client.written
    assert b"x-penstock-attempts: 2" in client.written


def test_a_request_is_not_copied_for_a_fall_back_where_no_backend_is_fit() -> None:
    """Thousands may be held, and are looked at again and again. This one cannot be sized anew."""
    play = Routed(ALIAS)
    play.ejects("b3")
    asks(play)
    exchange = play.client.exchange
    ask = exchange.request.ask.changed(prompt_tokens=0, measured=(1.0, 0.0))
    assert next_fallback(play.plane, ask, exchange.request.way, "no_backend") is None
    play.backends[2].state = State.READY
    with pytest.raises(ZeroDivisionError):
        next_fallback(play.plane, ask, exchange.request.way, "no_backend")


def test_a_request_is_served_by_who_serves_its_model_also_as_a_last_resort() -> None:
    play = Routed(ALIAS)
    asks(play)
    exchange = play.client.exchange
    ask = exchange.request.ask
    assert is_served(play.plane, ask)
    for each in play.backends[:2]:
        each.models = {"other": b"{}"}
    assert not is_served(play.plane, ask)
    play.backends[0].models = {ask.model or "": b"{}"}
    play.backends[0].state = State.EJECTED
    assert not is_served(play.plane, ask)
    play.backends[0].doubted = True
    assert is_served(play.plane, ask)


def test_a_refused_dial_passes_over_no_fall_back() -> None:
    pools = [pool("small", 1, 2), pool("large", 3, 4), pool("tiny", 5)]
    fallbacks = [{"pool": "large", "on": ["errors"]}, {"pool": "tiny", "on": ["errors"]}]
    route = {"name": "r", "to": [{"pool": "small"}], "fallbacks": fallbacks}
    play = Play(5, pools=pools, routes=[route])
    play.down["b3"] = 111
    play.client.sends(chat('"model":"m"'))
    for name in ("b1", "b2"):
        play[name].sends(plain("502 Bad Gateway"))
    record = record_of(play.client)
    assert (record.backend, record.fell_back) == ("b4", "errors")
    play.answers("b4")


class Crowd(Play):
    """Many clients, one request each. `requests`: which each backend has now.

    Pool `small` with b1 and b2, pool `large` with b3 and b5, pool `tiny` with b4.
    """

    def __init__(self, route: dict[str, Any], *ejected: str) -> None:
        self.requests: dict[str, list[Upstream]] = {}
        pools = [pool("small", 1, 2), pool("large", 3, 5), pool("tiny", 4)]
        super().__init__(5, pools=pools, routes=[route])
        self.ejects(*ejected)
        self.clients = [self.connects() for _ in range(CLIENTS)]
        for number, client in enumerate(self.clients):
            client.sends(chat('"model":"gpt-small"', content=f"{number}"))
        self.turns()

    def asked(self, name: str, upstream: Upstream) -> None:
        super().asked(name, upstream)
        self.requests.setdefault(name, []).append(upstream)

    def dies(self, *names: str) -> None:
        """With several names all at the same moment."""
        for upstream in [each for name in names for each in self.requests.pop(name, [])]:
            upstream.closed = True
            upstream.protocol.connection_lost(ConnectionResetError())
        self.turns()

    def answers(self, name: str, *texts: str) -> None:
        for upstream in self.requests.pop(name, []):
            upstream.sends(STREAM, token("a"), DONE, END)
        self.turns()

    def told(self, text: bytes) -> int:
        return sum(text in client.written for client in self.clients)


def test_a_pool_that_dies_under_load_loses_nothing_to_its_retry_budget() -> None:
    """A fifth of its requests may be retried in it. Its route has said where the others go."""
    play = Crowd(ALIAS)
    play.dies("b1")
    play.dies("b2")
    assert len(play.requests["b3"] + play.requests["b5"]) == CLIENTS
    large = [each for each in play.backends if each.pool == "large"]
    assert [each.own.retries for each in large] == [0, 0]  # they are for what fails there
    for name in ("b3", "b5"):
        play.answers(name)
    assert play.told(b"[DONE]") == CLIENTS


DEAD = {"pool": "large", "on": ["no_backend", "errors"]}
SAME = {"pool": "small", "model": "llama", "on": ["no_backend", "errors"]}
TINY = {"pool": "tiny", "on": ["no_backend", "errors"]}


@pytest.mark.parametrize(
    ("to", "fallbacks", "lost"),
    [
        ("small", [DEAD, TINY], 0),
        ("small", [SAME, TINY], 3),  # by the budget they may be tried there, with either model
        ("large", [SAME, TINY], 0),
    ],
    ids=["one that is dead", "one in its own pool", "one that was dead first"],
)
def test_a_fall_back_that_is_no_help_hides_no_later_one(
    to: str, fallbacks: list[dict[str, Any]], lost: int
) -> None:
    play = Crowd(ALIAS | {"to": [{"pool": to}], "fallbacks": fallbacks}, "b3", "b5")
    for _ in range(3):  # those that may are tried again where they were
        for name in ("b1", "b2"):
            if play.requests.get(name):
                play.dies(name)
    play.answers("b4")
    assert play.told(b"[DONE]") == CLIENTS - lost


def test_another_model_of_the_same_pool_keeps_to_its_budget() -> None:
    play = Crowd(ALIAS | {"fallbacks": [{"pool": "small", "model": "llama", "on": ["errors"]}]})
    play.dies("b1")
    play.dies("b2")
    assert play.told(b"HTTP/1.1 502") == CLIENTS - 3
    assert sum(backend.own.retries for backend in play.backends) == 3
    for name in ("b1", "b2"):
        play.answers(name)
    assert play.told(b"[DONE]") == 3


def test_a_request_is_sent_four_times_at_most() -> None:
    """Also if connections that were just closed took it, in both pools."""
    play = Routed(ALIAS, {"name": "large", "match": {"model": "llama"}, "to": [{"pool": "large"}]})
    for model, name in (("llama", "b3"), ("gpt-small", "b1"), ("gpt-small", "b2")):
        asks(play, model)
        play.answers(name)
    play.passes(0.1)
    asks(play)
    play.fails("b1")
    play.happened()
    for name in ("b2", "b2", "b3"):
        play[name].resets()
    sent = [line for line in play.happened() if line.endswith("POST")]
    assert sent == ["b2 got POST", "b3 got POST"]
