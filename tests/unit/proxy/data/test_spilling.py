"""Transcripts of requests that spill to another target of their route."""

from typing import Any

import pytest

from tests.unit.proxy.data.playbook import Client, Play, chat, pool, post

FULL: dict[str, Any] = {"admission": {"enabled": False}}


class Spilling(Play):
    """Prompts of 1,000 tokens and more go to `long` (b2), others to `chat` (b1); both spill."""

    def __init__(self, **settings: Any) -> None:
        routes = [
            {
                "name": name,
                "match": {"prompt_tokens": {"min": least}} if least else {},
                "to": [{"pool": name}, {"pool": other, "weight": 0, "model": "m2"}],
                "spill": True,
            }
            for name, other, least in (("long", "chat", 1_000), ("chat", "long", 0))
        ]
        pools = [pool("chat", 1, policy="token_cost"), pool("long", 2, policy="token_cost")]
        super().__init__(pools=pools, routes=routes, **settings)

    def asks(self, tokens: int) -> Client:
        client = self.connects()
        client.sends(chat('"model":"m"', content="word " * tokens))
        return client

    @property
    def running(self) -> list[int]:
        return [backend.own.requests for backend in self.backends]


def test_each_length_has_its_pool_while_there_is_room() -> None:
    play = Spilling()
    for tokens in (10, 2_000, 10):
        play.asks(tokens)
    assert play.running == [2, 1]


@pytest.mark.parametrize(
    ("full", "tokens", "way", "waits"),
    [(0, 10, "chat", False), (1, 2_000, "long", False), (0, 10, "chat", True)],
)
def test_where_there_is_no_room_a_request_spills_in_both_directions(
    full: int, tokens: int, way: str, waits: bool
) -> None:
    """Also where it would wait otherwise."""
    play = Spilling(admission={"enabled": waits})
    play.backends[full].max_requests = 0
    client = play.asks(tokens)
    assert play.running == [full, 1 - full]
    assert play.model(f"b{2 - full}") == "m2"
    client.closes()
    other = {"chat": "long", "long": "chat"}[way]
    assert play.metrics.route_requests[way, f"{other}/m2"] == 1


def test_a_long_wait_is_left_and_a_short_one_is_not() -> None:
    play = Spilling(**FULL)
    play.asks(2_000)
    assert play.running == [0, 1]
    waiting = 1
    while play.running[0] == 0 and waiting < 100:
        play.asks(8_000)
        waiting += 1
    # The one that spilled would have waited for longer than its own prompt takes.
    assert play.running == [1, waiting - 1]
    assert 3 <= waiting < 100


def test_no_request_spills_to_a_model_with_too_short_a_context() -> None:
    play = Spilling(**FULL)
    play.backends[1].max_requests = 0
    play.backends[0].contexts = {None: 2_048}
    client = play.asks(2_000)
    assert b"503" in client.written or b"429" in client.written
    play.backends[0].contexts = {None: 32_768}
    play.asks(2_000)
    assert play.running == [1, 0]


def test_a_stored_response_is_not_left_for_less() -> None:
    play = Spilling()
    play.backends[0].max_requests = 0
    body = b'{"model":"m","input":"x","stream":true,"previous_response_id":"resp_1"}'
    play.client.sends(post("/v1/responses", body))
    assert play.running == [0, 0]
