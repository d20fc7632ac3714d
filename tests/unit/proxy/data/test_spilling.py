"""Transcripts of requests that spill to another target of their route."""

from typing import Any

import orjson
import pytest

from tests.unit.proxy.data.playbook import Client, Play, chat


class Spilling(Play):
    """Prompts of 1,000 tokens and more go to `long` (b2), others to `chat` (b1); both spill."""

    def __init__(self, **settings: Any) -> None:
        pools = [
            {"name": name, "backends": [{"name": f"b{n}", "url": f"http://10.0.0.{n}:1"}]}
            for n, name in ((1, "chat"), (2, "long"))
        ]
        routes = [
            {
                "name": name,
                "match": {"prompt_tokens": {"min": least}} if least else {},
                "to": [{"pool": name}, {"pool": other, "weight": 0, "model": "m2"}],
                "spill": True,
            }
            for name, other, least in (("long", "chat", 1_000), ("chat", "long", 0))
        ]
        super().__init__(2, pools=pools, routes=routes, **settings)

    def asks(self, tokens: int) -> Client:
        client = self.connects()
        client.sends(chat('"model":"m"', content="word " * tokens))
        return client

    @property
    def running(self) -> list[int]:
        return [backend.own.requests for backend in self.backends]


def ends(play: Spilling, *clients: Client) -> None:
    for client in clients:
        client.closes()
    play.close()


def test_each_length_has_its_pool_while_there_is_room() -> None:
    play = Spilling()
    clients = [play.asks(10), play.asks(2_000), play.asks(10)]
    assert play.running == [2, 1]
    ends(play, *clients)


@pytest.mark.parametrize(("full", "tokens"), [(0, 10), (1, 2_000)])
def test_where_there_is_no_room_a_request_spills_in_both_directions(full: int, tokens: int) -> None:
    play = Spilling(admission={"enabled": False})
    play.backends[full].max_requests = 0
    client = play.asks(tokens)
    assert play.running[1 - full] == 1
    assert orjson.loads(play[f"b{2 - full}"].body)["model"] == "m2"
    route = ("chat", "long")[full]
    assert play.happened()
    ends(play, client)
    assert play.metrics.route_requests[route, f"{('long', 'chat')[full]}/m2"] == 1


def test_a_long_wait_is_left_and_a_short_one_is_not() -> None:
    play = Spilling(admission={"enabled": False})
    waiting = [play.asks(2_000)]
    assert play.running == [0, 1]
    while play.running[0] == 0 and len(waiting) < 100:
        waiting.append(play.asks(8_000))
    # The one that spilled would have waited for longer than its own prompt takes.
    assert play.running == [1, len(waiting) - 1]
    assert 3 <= len(waiting) < 100
    ends(play, *waiting)


def test_no_request_spills_to_a_model_with_too_short_a_context() -> None:
    play = Spilling(admission={"enabled": False})
    play.backends[1].max_requests = 0
    play.backends[0].contexts = {None: 2_048}
    client = play.asks(2_000)
    assert b"503" in client.written or b"429" in client.written
    play.backends[0].contexts = {None: 32_768}
    served = play.asks(2_000)
    assert play.running == [1, 0]
    ends(play, client, served)


def test_what_would_wait_or_be_refused_spills_too() -> None:
    play = Spilling(admission={"enabled": True})
    play.backends[0].max_requests = 0
    clients = [play.asks(10)]
    assert play.running == [0, 1]
    ends(play, *clients)


def test_a_stored_response_is_not_left_for_less() -> None:
    play = Spilling()
    play.backends[0].max_requests = 0
    body = b'{"model":"m","input":"x","stream":true,"previous_response_id":"resp_1"}'
    line = b"POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    play.client.sends(line + b"content-length: %d\r\n\r\n%b" % (len(body), body))
    assert play.running == [0, 0]
    ends(play)
