"""Transcripts of requests that routes send elsewhere, and change."""

from typing import Any

import orjson
import pytest

from penstock.proxy.data.local_answers import alias_cards
from tests.unit.proxy.data.playbook import (
    DONE,
    END,
    STREAM,
    Client,
    Play,
    chat,
    plain,
    pool,
    post,
    tenants,
    token,
)

ALIAS: dict[str, Any] = {
    "name": "alias",
    "match": {"model": "gpt-small"},
    "to": [{"pool": "small", "model": "qwen"}],
    "fallbacks": [
        {"pool": "large", "model": "llama", "on": ["no_backend", "errors"]},
        {"pool": "large", "model": "lora", "on": ["overload"]},
    ],
}
REFUSE = {"name": "gone", "match": {"model": "gpt-3*"}, "refuse": "This model is gone."}


class Routed(Play):
    """Pool `small` with b1 and b2, pool `large` with b3; each serves any model."""

    def __init__(self, *routes: dict[str, Any], **settings: Any) -> None:
        pools = [pool("small", 1, 2), pool("large", 3)]
        super().__init__(pools=pools, routes=list(routes), **settings)

    def fails(self, *names: str) -> None:
        """Each of them does, one after the other."""
        for name in names:
            self[name].sends(plain("502 Bad Gateway"))


@pytest.fixture
def play() -> Routed:
    return Routed(ALIAS, REFUSE)


def asks(play: Routed, model: str = "gpt-small", *fields: str, head: bytes = b"") -> Client:
    play.client.sends(chat(f'"model":"{model}"', *fields, head=head))
    return play.client


def record_of(client: Client) -> Any:
    return client.exchange.request.record


def test_an_alias_is_sent_as_what_it_stands_for(play: Routed) -> None:
    client = asks(play, "gpt-small", '"odd" : [1.50]')
    sent = play["b1"].body
    assert orjson.loads(sent)["model"] == "qwen"
    assert b'"odd" : [1.50]' in sent
    play.answers("b1")
    assert b"x-penstock-model: qwen" in client.written
    assert b"[DONE]" in client.written
    assert play.metrics.route_requests["alias", "small/qwen"] == 1


def test_what_no_route_matches_goes_by_its_model_and_is_not_touched(play: Routed) -> None:
    client = asks(play, "llama")
    assert play["b1"].body.count(b'"model"') == 1
    play.answers("b1")
    assert b"x-penstock-model" not in client.written
    assert not list(play.metrics.route_requests.items())


def test_a_route_refuses(play: Routed) -> None:
    client = asks(play, "gpt-3.5")
    assert b"HTTP/1.1 403" in client.written
    assert b"This model is gone." in client.written
    assert b"route_refused" in client.written
    assert play.metrics.route_requests["gone", "refused"] == 1


def test_a_head_that_went_out_early_names_the_first_attempt_and_the_events_who_answers() -> None:
    play = Routed(ALIAS, timeouts={"hold_s": 2.0})
    client = asks(play)
    record = record_of(client)
    play.passes(3.0)
    assert b"x-penstock-model: qwen\r\n" in client.written
    head, _, _ = client.written.partition(b"\r\n\r\n")
    play.fails("b1", "b2")
    answer = token("a").replace(b'{"choices"', b'{"model":"llama","choices"')
    answer = answer.replace(answer[:2], b"%x" % (len(answer.partition(b"\r\n")[2]) - 2), 1)
    play["b3"].sends(STREAM, answer, DONE, END)
    assert client.written.startswith(head)
    assert client.written.count(b"x-penstock-model") == 1  # nothing more is sent for it
    assert b'"model":"llama"' in client.written
    assert b"[DONE]" in client.written
    assert (record.fell_back, record.backend) == ("errors", "b3")


def test_where_no_backend_serves_the_fall_back_does(play: Routed) -> None:
    play.ejects("b1", "b2")
    client = asks(play)
    record = record_of(client)
    assert play.model("b3") == "llama"
    play.answers("b3")
    assert b"x-penstock-model: llama" in client.written
    assert record.fell_back == "no_backend"
    assert play.metrics.route_requests["alias", "large/llama"] == 1


def test_the_last_attempt_is_for_the_fall_back(play: Routed) -> None:
    client = asks(play)
    play.fails("b1")
    assert play.model("b2") == "qwen"
    play.fails("b2")
    record = record_of(client)
    assert play.model("b3") == "llama"
    play.answers("b3")
    assert record.fell_back == "errors"
    assert b"x-penstock-attempts: 3" in client.written
    assert b"HTTP/1.1 200" in client.written


def test_three_failures_are_all_that_a_request_may_cost(play: Routed) -> None:
    client = asks(play)
    play.fails("b1", "b2", "b3")
    assert b"HTTP/1.1 502" in client.written
    assert b"x-penstock-attempts: 3" in client.written


def test_nothing_falls_back_after_the_first_token(play: Routed) -> None:
    client = asks(play)
    play.streams("b1", "a")
    play["b1"].closes()
    assert b"stream_broken" in client.written
    assert play.backends[2].own.requests == 0


def test_one_that_is_refused_for_load_goes_to_the_fall_back_for_that() -> None:
    play = Routed(ALIAS, admission={"enabled": False})
    for backend in play.backends[:2]:
        backend.max_requests = 0
    client = asks(play)
    assert play.model("b3") == "lora"
    record = record_of(client)
    assert record.fell_back == "overload"
    play.answers("b3")


def test_one_that_waited_in_vain_goes_to_the_fall_back(play: Routed) -> None:
    others = [play.connects() for _ in range(2)]
    for other in others:
        other.sends(chat('"model":"qwen"', content="all work " * 9_000))
    client = asks(play)
    assert play.plane.admission.waiting == 1
    play.ejects("b1", "b2")
    play.passes(1.0)
    assert play.model("b3") == "llama"
    play.answers("b3")
    assert b"HTTP/1.1 200" in client.written


def test_what_a_route_sets() -> None:
    route = ALIAS | {
        "set": {
            "headers": {"x-team": "blue"},
            "body": {"max_tokens_at_most": 100, "defaults": {"temperature": 0.2, "seed": 7}},
        }
    }
    play = Routed(route)
    head = b"x-team: red\r\nconnection: x-team\r\n"
    asks(play, "gpt-small", '"max_tokens":4096', '"seed":1', head=head)
    sent = orjson.loads(play["b1"].body)
    assert (sent["max_tokens"], sent["temperature"], sent["seed"]) == (100, 0.2, 1)
    assert b"\r\nx-team: blue\r\n" in play["b1"].head
    assert b"red" not in play["b1"].head
    play.answers("b1")


@pytest.mark.parametrize(
    ("path", "asked", "sent"),
    [
        (
            "/v1/completions",
            '"max_tokens":4096,"min_tokens":200',
            '"max_tokens":100,"min_tokens":100',
        ),
        ("/v1/completions", '"max_tokens":4e3', '"max_tokens":100'),
        (
            "/inference/v1/generate",
            '"sampling_params":{"max_tokens":4096,"min_tokens":200,"top_k":1}',
            '"sampling_params":{"max_tokens":100,"min_tokens":100,"top_k":1}',
        ),
    ],
)
def test_no_way_to_ask_gets_round_the_cap_of_a_route(path: str, asked: str, sent: str) -> None:
    play = Routed(ALIAS | {"set": {"body": {"max_tokens_at_most": 100}}})
    body = '{"model":"gpt-small","prompt":"x","token_ids":[1],%s}'
    posts(play, (body % asked).encode(), path)
    found, wanted = orjson.loads(play["b1"].body), orjson.loads(body % sent)
    assert found | {"model": ""} == wanted | {"model": ""}
    play.answers("b1")


def test_sessions_stay_at_their_version() -> None:
    to = [{"pool": "small", "weight": 50}, {"pool": "large", "weight": 50}]
    play = Routed({"name": "split", "to": to})
    seen: dict[int, set[str]] = {}
    for number in range(24):
        session = number % 8
        request = asks(play, "m", head=b"x-session-id: %d\r\n" % session).exchange.request
        seen.setdefault(session, set()).add(request.ask.pool)
        play.answers(request.record.backend)
    assert {len(pools) for pools in seen.values()} == {1}
    assert len({pool for pools in seen.values() for pool in pools}) == 2


def posts(
    play: Play, body: bytes, path: str = "/v1/responses", client: Client | None = None
) -> None:
    (client or play.client).sends(post(path, body))


def stored(play: Routed, name: str) -> None:
    body = b'{"id":"resp_1","object":"response","status":"completed","output":[1]}'
    play[name].sends(plain("200 OK", body))
    play.passes(0.1)


def test_what_goes_on_from_a_stored_response_keeps_the_drawn_model_of_its_pool() -> None:
    to = [{"pool": "small", "model": "old", "weight": 0}, {"pool": "small", "model": "new"}]
    play = Routed({"name": "r", "to": to})
    posts(play, b'{"model":"m","input":"x"}')
    stored(play, "b1")
    posts(play, b'{"model":"m","input":"y","previous_response_id":"resp_1"}')
    assert play.model("b1") == "new"
    stored(play, "b1")


def test_it_goes_to_the_fall_back_that_made_it(play: Routed) -> None:
    play.ejects("b1", "b2")
    posts(play, b'{"model":"gpt-small","input":"x"}')
    stored(play, "b3")
    play.ejects()
    posts(play, b'{"model":"gpt-small","input":"y","previous_response_id":"resp_1"}')
    assert play.model("b3") == "llama"
    stored(play, "b3")


def test_it_goes_nowhere_else_when_its_backend_is_full() -> None:
    play = Routed(ALIAS, admission={"enabled": False})
    posts(play, b'{"model":"gpt-small","input":"x"}')
    stored(play, "b1")
    play.backends[0].max_requests = 0
    posts(play, b'{"model":"gpt-small","input":"y","previous_response_id":"resp_1"}')
    assert b"HTTP/1.1 429" in play.client.written


def test_overload_lengthens_no_answer() -> None:
    route = {"name": "r", "to": [{"pool": "small"}], "set": {"body": {"max_tokens_at_most": 100}}}
    cap = {"class": "standard", "pressure": 0.001, "max_tokens": 512}
    play = Play(pools=[pool("small", 1)], routes=[route], admission={"degrade": [cap]})
    members = [play.connects() for _ in range(3)]
    for member in members:
        member.sends(chat('"max_tokens":4096', content="all work and no play " * 1_000))
    for _ in members:
        assert orjson.loads(play["b1"].body)["max_tokens"] == 100
        play.answers("b1")


def test_an_alias_has_the_history_of_what_it_stands_for(play: Routed) -> None:
    for _ in range(60):
        play.plane.outputs.observe("10.9.9.9", "qwen", "/v1/chat/completions", None, 20)
    asks(play)
    exchange = play.client.exchange
    expected = play.plane.outputs.expect(
        exchange.request.ask.client, "qwen", "/v1/chat/completions", None
    )
    assert exchange.request.ask.output_tokens == expected
    play.answers("b1")


FIELD = b'--b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b'
MODEL = FIELD % (b"model", b"gpt-small")


@pytest.mark.parametrize("size", [100, 200_000, 1_100_000])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_model_of_a_form_wherever_it_stands(size: int, place: int) -> None:
    parts = [FIELD % (b'file"; filename="a', b"x" * size)] * 2
    parts.insert(place, MODEL)
    play = Routed(ALIAS)
    body = b"\r\n".join(parts) + b"\r\n--b--\r\n"
    kind = b"content-type: multipart/form-data; boundary=b\r\n"
    play.client.sends(post("/v1/audio/transcriptions", body, kind))
    play.passes(1.0)
    assert play["b1"].body == body.replace(b"gpt-small", b"qwen")
    play["b1"].sends(plain("200 OK"))


SECRET = {"pool": "large", "model": "secret"}


def test_which_names_are_listed_for_whom() -> None:
    play = Routed(
        {"name": "vip", "match": {"model": "a", "headers": {"x-vip": "*"}}, "to": [SECRET]},
        {"name": "all", "match": {"model": "a"}, "to": [{"pool": "small", "model": "qwen"}]},
        {"name": "closed", "match": {"model": "b", "tenant": "t"}, "refuse": "Not for you."},
        {"name": "open", "match": {"model": "b"}, "to": [{"pool": "small"}]},
        tenants=tenants("t"),
    )
    told = alias_cards(play.plane.routes, play.plane.fleet, "t")
    card = told["a"]
    assert card is not None
    assert orjson.loads(card)["root"] is None  # it depends on more than the name
    assert told["b"] is None
    assert alias_cards(play.plane.routes, play.plane.fleet, "u")["b"] is not None
