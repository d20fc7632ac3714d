"""Transcripts of requests whose adapter a backend loads first."""

from collections.abc import Iterator

import orjson
import pytest

from penstock.balancing.backend import State
from penstock.health.probes import Outcome
from penstock.proxy.data.adapters import TURN_MAX, WAIT_S
from penstock.proxy.data.local_answers import alias_cards
from tests.unit.proxy.data.loading import FALLS_BACK, LAW, SQL, Loading, code, route
from tests.unit.proxy.data.playbook import chat, plain


@pytest.fixture
def play() -> Iterator[Loading]:
    playing = Loading()
    yield playing
    playing.close()


def test_the_first_request_waits_for_the_load_and_goes_where_the_adapter_is(play: Loading) -> None:
    client = play.asks()
    assert play.happened() == ["b1 loads sql-1 of /adapters/sql"]
    play.passes(3.0)
    assert not client.written
    play.loaded("b1", "sql-1")
    assert orjson.loads(play["b1"].body)["model"] == "sql-1"
    exchange = client.connection._exchange
    assert exchange is not None
    record = exchange.request.record
    assert (record.waits_for, round(record.waited_s, 1)) == ("adapter", 3.0)
    play.answers("b1")
    assert b"[DONE]" in client.written
    assert play.metrics.adapter_loads["p", "ok"] == 1


def test_later_requests_go_there_without_another_load(play: Loading) -> None:
    play.asks()
    play.loaded("b1", "sql-1")
    play.answers("b1")
    play.happened()
    play.client.sends(chat('"model":"sql"'))
    assert play.happened()[-1] == "b1 got POST"
    assert not play.hangs
    play.answers("b1")


def test_meanwhile_other_models_of_the_same_backend_are_served(play: Loading) -> None:
    waiting = play.asks()
    other = play.connects()
    other.sends(chat('"model":"base"'))
    assert play.happened()[-1] == "b1 got POST"
    play.answers("b1")
    assert b"[DONE]" in other.written
    assert not waiting.written
    other.closes()


def test_a_crowd_makes_one_load_and_is_told_some_in_each_turn() -> None:
    play = Loading(backends=1)
    clients = [play.client, *[play.connects() for _ in range(3 * TURN_MAX)]]
    for client in clients:
        client.sends(chat('"model":"sql"'))
    assert play.happened() == ["b1 loads sql-1 of /adapters/sql"]
    play.backends[0].models = {"sql-1": b"{}"}
    play.hangs["b1", "sql-1"].set_result(Outcome())
    most, sent = 0, 0
    for _ in range(40):
        play.loop.call_soon(play.loop.stop)
        play.loop.run_forever()  # one turn
        before, sent = sent, play.backends[0].own.requests
        most = max(most, sent - before)
    assert sent == len(clients)
    assert most <= TURN_MAX
    play.turns()
    for client in clients:
        client.closes()
    play.close()


def test_a_client_that_leaves_while_it_waits_is_forgotten(play: Loading) -> None:
    client = play.asks()
    client.closes()
    assert not play.plane.adapters._waiting
    play.loaded("b1", "sql-1")
    assert "b1 got POST" not in play.happened()


def test_what_no_route_names_is_not_loaded(play: Loading) -> None:
    for model in ("sql-1", "law-1", "../sql", "/adapters/sql"):
        client = play.asks(model)
        assert code(client)[:2] == (404, "model_not_found")
    assert not play.hangs


def test_after_two_failed_loads_the_client_is_told_and_others_at_once(play: Loading) -> None:
    client = play.asks()
    play.fails("b1", "sql-1")
    assert not client.written
    play.fails("b2", "sql-1")
    assert code(client) == (
        503,
        "no_backend",
        "No backend could load this model; retry after the seconds in Retry-After.",
    )
    assert b"\r\nretry-after: 1\r\n" in client.written
    assert code(play.asks())[0] == 503
    assert not play.hangs
    assert play.metrics.adapter_loads["p", "failed"] == 2
    play.passes(1.0)
    play.asks()
    assert list(play.hangs) == [("b1", "sql-1")]


def test_or_its_route_falls_back() -> None:
    play = Loading(FALLS_BACK, backends=1)
    client = play.asks()
    play.fails("b1", "sql-1")
    assert orjson.loads(play["b1"].body)["model"] == "base"
    play.answers("b1")
    assert b"x-penstock-model: base" in client.written
    play.close()


def test_a_load_that_never_ends_keeps_nobody_for_ever(play: Loading) -> None:
    client = play.asks()
    play.passes(WAIT_S - 1.0)
    assert b"no_backend" not in client.written
    play.passes(2.0)
    assert b"no_backend" in client.written  # in a stream of comments, which has begun
    play.fails("b1", "sql-1")


def test_who_waits_for_less_is_told_so_then(play: Loading) -> None:
    client = play.asks(head=b"x-request-timeout: 5\r\n")
    play.passes(6.0)
    assert code(client)[0] == 408
    play.loaded("b1", "sql-1")
    assert "b1 got POST" not in play.happened()


def test_when_the_only_one_that_has_it_fails_another_one_loads_it(play: Loading) -> None:
    client = play.asks()
    play.loaded("b1", "sql-1")
    play["b1"].sends(plain("502 Bad Gateway"))
    play.loaded("b2", "sql-1")
    assert orjson.loads(play["b2"].body)["model"] == "sql-1"
    play.answers("b2")
    assert b"x-penstock-attempts: 2" in client.written


def test_if_that_fails_too_the_failure_is_told(play: Loading) -> None:
    client = play.asks()
    play.loaded("b1", "sql-1")
    play["b1"].sends(plain("502 Bad Gateway"))
    play.fails("b2", "sql-1")
    assert code(client)[:2] == (502, "backend_error")


def test_a_reload_that_drops_the_adapter_lets_nobody_wait(play: Loading) -> None:
    client = play.asks()
    play.plane.adapters.follow({})
    play.turns()
    assert code(client)[:2] == (503, "no_backend")
    play.fails("b1", "sql-1")


def test_a_load_whose_path_a_reload_changes_is_warned_of(
    play: Loading, caplog: pytest.LogCaptureFixture
) -> None:
    play.asks()
    play.plane.adapters.follow({("p", "sql-1"): "/adapters/new"})
    play.turns()
    play.loaded("b1", "sql-1")
    assert "adapter not loaded name=b1 adapter=sql-1 reason=old_path rests_s=0" in caplog.messages
    assert play.metrics.adapter_loads["p", "ok"] == 0
    assert play.metrics.adapter_loads["p", "failed"] == 1
    play.answers("b1")  # the engine has that name


def test_two_loads_keep_a_request_no_longer_than_one(play: Loading) -> None:
    client = play.asks()
    play.passes(WAIT_S - 20.0)
    play.fails("b1", "sql-1")
    play.passes(19.0)
    assert b"no_backend" not in client.written
    play.passes(2.0)
    assert b"no_backend" in client.written
    play.fails("b2", "sql-1")


def test_who_waits_for_a_place_is_told_when_another_load_is_over() -> None:
    """One client has one load at a backend."""
    play = Loading(backends=1)
    first, second = play.client, play.connects()
    first.sends(chat('"model":"sql"'))
    second.sends(chat('"model":"law"'))
    assert play.happened() == ["b1 loads sql-1 of /adapters/sql"]
    play.loaded("b1", "sql-1")
    assert "b1 loads law-1 of /adapters/law" in play.happened()
    play.answers("b1")
    play.loaded("b1", "law-1")
    play.answers("b1")
    assert b"[DONE]" in second.written
    second.closes()
    play.close()


def test_whose_last_load_is_the_oldest_comes_first() -> None:
    """A flood of first uses does not keep another client's waiting."""
    names = ("sql", "law", "art", "map", "tax")
    play = Loading(
        *(route(name) for name in names),
        backends=1,
        tenants=[{"name": each, "keys": [{"key": f"key-of-{each}"}]} for each in "abc"],
    )
    clients = []
    for tenant, model in zip("aaabc", names, strict=True):
        clients.append(client := play.connects())
        client.sends(chat(f'"model":"{model}"', head=f"x-api-key: key-of-{tenant}\r\n".encode()))
    assert play.happened() == [
        "b1 loads sql-1 of /adapters/sql",  # a's first
        "b1 loads map-1 of /adapters/map",  # b's, in the second place
    ]
    play.passes(1.0)
    play.fails("b1", "sql-1")
    assert "b1 loads law-1 of /adapters/law" in play.happened()  # of a, which waited before c came
    play.fails("b1", "law-1")
    assert "b1 loads tax-1 of /adapters/tax" in play.happened()  # of c, before another one of a
    for each in clients:
        each.closes()
    for name in ("map-1", "tax-1"):
        play.fails("b1", name)
    play.close()


def test_a_load_that_fails_after_a_backend_has_failed_counts_as_errors() -> None:
    play = Loading(SQL | {"fallbacks": [{"pool": "p", "model": "base", "on": ["errors"]}]})
    client = play.asks()
    play.loaded("b1", "sql-1")
    play["b1"].sends(plain("502 Bad Gateway"))
    play.fails("b2", "sql-1")
    exchange = client.connection._exchange
    assert exchange is not None
    record = exchange.request.record
    assert record.fell_back == "errors"
    assert orjson.loads(play[record.backend].body)["model"] == "base"
    play.answers(record.backend)
    assert b"x-penstock-model: base" in client.written
    play.close()


def test_the_last_attempt_is_for_a_fall_back_that_loads_its_adapter_first() -> None:
    law = {"pool": "p", "model": "law-1", "on": ["errors"]}
    route = SQL | {"to": [{"pool": "p", "model": "base"}], "fallbacks": [law]}
    play = Loading(route, LAW, backends=3)
    client = play.asks()
    for name in ("b1", "b2"):
        play[name].sends(plain("502 Bad Gateway"))
        play.turns()
    ((name, _),) = play.hangs
    play.loaded(name, "law-1")
    play.answers(name)
    assert b"[DONE]" in client.written
    play.close()


def test_the_name_is_listed_before_it_is_loaded_with_the_context_of_its_base(play: Loading) -> None:
    card = alias_cards(play.plane.routes, play.plane.fleet, "")["sql"]
    assert card is not None
    assert orjson.loads(card)["root"] == "sql-1"
    assert orjson.loads(card)["max_model_len"] == 4_096
    for backend in play.backends:
        backend.state = State.EJECTED
    assert "sql" not in alias_cards(play.plane.routes, play.plane.fleet, "")
