"""Transcripts of requests that routes send elsewhere, and change."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from penstock.balancing.backend import State
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Client, Play, chat, plain, token

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
        def backend(number: int) -> dict[str, object]:
            return {"name": f"b{number}", "url": f"http://10.0.0.{number}:1"}

        pools = [
            {"name": "small", "policy": "round_robin", "backends": [backend(1), backend(2)]},
            {"name": "large", "policy": "round_robin", "backends": [backend(3)]},
        ]
        super().__init__(3, pools=pools, routes=list(routes), **settings)

    def answers(self, name: str) -> None:
        self[name].sends(STREAM, token("a"), DONE, END)
        self.turns()


@pytest.fixture
def play() -> Iterator[Routed]:
    playing = Routed(ALIAS, REFUSE)
    yield playing
    playing.close()


def asks(play: Routed, model: str = "gpt-small", *fields: str, head: bytes = b"") -> Client:
    play.client.sends(chat(f'"model":"{model}"', *fields, head=head))
    return play.client


def record_of(client: Client) -> Any:
    exchange = client.connection._exchange
    assert exchange is not None
    return exchange.request.record


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
    for name in ("b1", "b2"):
        play[name].sends(plain("502 Bad Gateway"))
    answer = token("a").replace(b'{"choices"', b'{"model":"llama","choices"')
    answer = answer.replace(answer[:2], b"%x" % (len(answer.partition(b"\r\n")[2]) - 2), 1)
    play["b3"].sends(STREAM, answer, DONE, END)
    play.turns()
    assert client.written.startswith(head)
    assert client.written.count(b"x-penstock-model") == 1  # nothing more is sent for it
    assert b'"model":"llama"' in client.written
    assert b"[DONE]" in client.written
    assert (record.fell_back, record.backend) == ("errors", "b3")
    play.close()


def test_where_no_backend_serves_the_fall_back_does(play: Routed) -> None:
    for backend in play.backends[:2]:
        backend.state = State.EJECTED
    client = asks(play)
    record = record_of(client)
    assert orjson.loads(play["b3"].body)["model"] == "llama"
    play.answers("b3")
    assert b"x-penstock-model: llama" in client.written
    assert record.fell_back == "no_backend"
    assert play.metrics.route_requests["alias", "large/llama"] == 1


def test_the_last_attempt_is_for_the_fall_back(play: Routed) -> None:
    client = asks(play)
    play["b1"].sends(plain("502 Bad Gateway"))
    play.turns()
    assert orjson.loads(play["b2"].body)["model"] == "qwen"
    play["b2"].sends(plain("502 Bad Gateway"))
    play.turns()
    record = record_of(client)
    assert orjson.loads(play["b3"].body)["model"] == "llama"
    play.answers("b3")
    assert record.fell_back == "errors"
    assert b"x-penstock-attempts: 3" in client.written
    assert b"HTTP/1.1 200" in client.written


def test_three_failures_are_all_that_a_request_may_cost(play: Routed) -> None:
    client = asks(play)
    for name in ("b1", "b2", "b3"):
        play[name].sends(plain("502 Bad Gateway"))
        play.turns()
    assert b"HTTP/1.1 502" in client.written
    assert b"x-penstock-attempts: 3" in client.written


def test_nothing_falls_back_after_the_first_token(play: Routed) -> None:
    client = asks(play)
    play["b1"].sends(STREAM, token("a"))
    play["b1"].closes()
    play.turns()
    assert b"stream_broken" in client.written
    assert play.backends[2].own.requests == 0


def test_one_that_is_refused_for_load_goes_to_the_fall_back_for_that() -> None:
    play = Routed(ALIAS, admission={"enabled": False})
    for backend in play.backends[:2]:
        backend.max_requests = 0
    client = asks(play)
    assert orjson.loads(play["b3"].body)["model"] == "lora"
    record = record_of(client)
    assert record.fell_back == "overload"
    play.answers("b3")
    play.close()


def test_one_that_waited_in_vain_goes_to_the_fall_back(play: Routed) -> None:
    others = [play.connects() for _ in range(2)]
    for other in others:
        other.sends(chat('"model":"qwen"', content="all work " * 9_000))
    client = asks(play)
    assert play.plane.admission.waiting == 1
    for backend in play.backends[:2]:
        backend.state = State.EJECTED
    play.passes(1.0)
    assert orjson.loads(play["b3"].body)["model"] == "llama"
    play.answers("b3")
    assert b"HTTP/1.1 200" in client.written
    for other in others:
        other.closes()


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
    play.close()


@pytest.mark.parametrize(
    ("path", "asked", "sent"),
    [
        (
            b"/v1/completions",
            '"max_tokens":4096,"min_tokens":200',
            '"max_tokens":100,"min_tokens":100',
        ),
        (b"/v1/completions", '"max_tokens":4e3', '"max_tokens":100'),
        (
            b"/inference/v1/generate",
            '"sampling_params":{"max_tokens":4096,"min_tokens":200,"top_k":1}',
            '"sampling_params":{"max_tokens":100,"min_tokens":100,"top_k":1}',
        ),
    ],
)
def test_no_way_to_ask_gets_round_the_cap_of_a_route(path: bytes, asked: str, sent: str) -> None:
    play = Routed(ALIAS | {"set": {"body": {"max_tokens_at_most": 100}}})
    body = '{"model":"gpt-small","prompt":"x","token_ids":[1],%s}'
    posts(play, (body % asked).encode(), path)
    found, wanted = orjson.loads(play["b1"].body), orjson.loads(body % sent)
    assert found | {"model": ""} == wanted | {"model": ""}
    play.answers("b1")
    play.close()


def test_sessions_stay_at_their_version() -> None:
    to = [{"pool": "small", "weight": 50}, {"pool": "large", "weight": 50}]
    play = Routed({"name": "split", "to": to})
    seen: dict[int, set[str]] = {}
    for number in range(24):
        session = number % 8
        client = asks(play, "m", head=b"x-session-id: %d\r\n" % session)
        exchange = client.connection._exchange
        assert exchange is not None
        seen.setdefault(session, set()).add(exchange.request.ask.pool)
        play.answers(exchange.request.record.backend)
    assert {len(pools) for pools in seen.values()} == {1}
    assert len({pool for pools in seen.values() for pool in pools}) == 2
    play.close()


def backend(number: int) -> dict[str, object]:
    return {"name": f"b{number}", "url": f"http://10.0.0.{number}:1"}


def posts(play: Play, body: bytes, path: bytes = b"/v1/responses") -> None:
    play.client.sends(
        b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (path, len(body), body)
    )


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
    assert orjson.loads(play["b1"].body)["model"] == "new"
    stored(play, "b1")
    play.close()


def test_it_goes_to_the_fall_back_that_made_it(play: Routed) -> None:
    for backend in play.backends[:2]:
        backend.state = State.EJECTED
    posts(play, b'{"model":"gpt-small","input":"x"}')
    stored(play, "b3")
    for backend in play.backends[:2]:
        backend.state = State.READY
    posts(play, b'{"model":"gpt-small","input":"y","previous_response_id":"resp_1"}')
    assert orjson.loads(play["b3"].body)["model"] == "llama"
    stored(play, "b3")


def test_it_goes_nowhere_else_when_its_backend_is_full() -> None:
    play = Routed(ALIAS, admission={"enabled": False})
    posts(play, b'{"model":"gpt-small","input":"x"}')
    stored(play, "b1")
    play.backends[0].max_requests = 0
    posts(play, b'{"model":"gpt-small","input":"y","previous_response_id":"resp_1"}')
    assert b"HTTP/1.1 429" in play.client.written
    play.close()


def test_overload_lengthens_no_answer() -> None:
    route = {"name": "r", "to": [{"pool": "small"}], "set": {"body": {"max_tokens_at_most": 100}}}
    cap = {"class": "standard", "pressure": 0.001, "max_tokens": 512}
    pools = [{"name": "small", "policy": "round_robin", "backends": [backend(1)]}]
    play = Play(1, pools=pools, routes=[route], admission={"degrade": [cap]})
    members = [play.connects() for _ in range(3)]
    for member in members:
        member.sends(chat('"max_tokens":4096', content="all work and no play " * 1_000))
    for _ in members:
        assert orjson.loads(play["b1"].body)["max_tokens"] == 100
        play["b1"].sends(STREAM, token("a"), DONE, END)
        play.turns()
    for member in members:
        member.closes()
    play.close()


def test_an_alias_has_the_history_of_what_it_stands_for(play: Routed) -> None:
    for _ in range(60):
        play.plane.outputs.observe("10.9.9.9", "qwen", "/v1/chat/completions", None, 20)
    asks(play)
    exchange = play.client.connection._exchange
    assert exchange is not None
    expected = play.plane.outputs.expect(
        exchange.request.ask.client, "qwen", "/v1/chat/completions", None
    )
    assert exchange.request.ask.output_tokens == expected
    play.answers("b1")


@pytest.mark.parametrize("size", [100, 200_000])
def test_the_model_of_a_form_wherever_it_stands(size: int) -> None:
    model = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\ngpt-small'
    file = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"x" * size
    for parts in ((model, file), (file, model)):
        play = Routed(ALIAS)
        body = b"\r\n".join(parts) + b"\r\n--b--\r\n"
        kind = b"content-type: multipart/form-data; boundary=b\r\n"
        play.client.sends(
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b"
            % (kind, len(body), body)
        )
        play.passes(0.5)
        assert play["b1"].body == body.replace(b"gpt-small", b"qwen")
        play["b1"].sends(plain("200 OK"))
        play.turns()
        play.close()


def test_the_model_in_the_middle_of_a_large_form() -> None:
    pad = b'--b\r\ncontent-disposition: form-data; name="x"\r\n\r\n' + b"x" * 1_100_000
    model = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\ngpt-small'
    play = Routed(ALIAS)
    body = b"\r\n".join((pad, model, pad)) + b"\r\n--b--\r\n"
    kind = b"content-type: multipart/form-data; boundary=b\r\n"
    play.client.sends(
        b"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b"
        % (kind, len(body), body)
    )
    play.passes(1.0)
    assert play["b1"].body == body.replace(b"gpt-small", b"qwen")
    play["b1"].sends(plain("200 OK"))
    play.turns()
    play.close()
