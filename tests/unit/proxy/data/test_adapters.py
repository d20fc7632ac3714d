"""Transcripts of requests whose adapter a backend loads first."""

from typing import Any

import orjson
import pytest

from penstock.balancing.backend import State
from penstock.health.probes import Outcome
from penstock.proxy.data.adapters import TURN_MAX, WAIT_S
from penstock.proxy.data.local_answers import alias_cards
from tests.unit.proxy.data.loading import FALLS_BACK, LAW, SQL, Loading, code, route, sent_after
from tests.unit.proxy.data.playbook import Client, chat, keyed, plain, pool, tenants

BAD = plain("502 Bad Gateway")


@pytest.fixture
def play() -> Loading:
    return Loading()


def test_the_first_request_waits_for_the_load_and_later_ones_go_where_the_adapter_is(
    play: Loading,
) -> None:
    client = play.asks()
    assert play.happened() == ["b1 loads sql-1 of /adapters/sql"]
    other = play.connects()
    other.sends(chat('"model":"base"'))
    assert play.happened()[-1] == "b1 got POST"  # another model of the same backend
    play.answers("b1")
    assert b"[DONE]" in other.written
    play.passes(3.0)
    assert not client.written
    play.loaded("b1", "sql-1")
    assert play.model("b1") == "sql-1"
    record = client.exchange.request.record
    assert (record.waits_for, round(record.waited_s, 1)) == ("adapter", 3.0)
    play.answers("b1")
    assert b"[DONE]" in client.written
    play.happened()
    client.sends(chat('"model":"sql"'))
    assert play.happened()[-1] == "b1 got POST"
    assert not play.hangs
    assert play.metrics.adapter_loads["p", "ok"] == 1


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


def test_a_client_that_leaves_while_it_waits_is_forgotten(play: Loading) -> None:
    play.asks().closes()
    assert not play.plane.adapters._waiting
    play.loaded("b1", "sql-1")
    assert "b1 got POST" not in play.happened()


def test_what_no_route_names_is_not_loaded(play: Loading) -> None:
    for model in ("sql-1", "law-1", "../sql", "/adapters/sql"):
        assert code(play.asks(model))[:2] == (404, "model_not_found")
    assert not play.hangs


def test_after_two_failed_loads_the_client_is_told_and_others_at_once(play: Loading) -> None:
    client = play.asks()
    play.fails("b1", "sql-1")
    assert not client.written
    play.fails("b2", "sql-1")
    told = "No backend could load this model; retry after the seconds in Retry-After."
    assert code(client) == (503, "no_backend", told)
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
    assert play.model("b1") == "base"
    play.answers("b1")
    assert b"x-penstock-model: base" in client.written


@pytest.mark.parametrize("first_s", [0.0, WAIT_S - 20.0], ids=["one load", "two loads"])
def test_loads_that_do_not_end_keep_nobody_for_ever(play: Loading, first_s: float) -> None:
    client = play.asks()
    play.passes(first_s)
    if first_s:
        play.fails("b1", "sql-1")
    play.passes(WAIT_S - 1.0 - first_s)
    assert b"no_backend" not in client.written
    play.passes(2.0)
    assert b"no_backend" in client.written  # in a stream of comments, which has begun


def test_who_waits_for_less_is_told_so_then(play: Loading) -> None:
    client = play.asks(head=b"x-request-timeout: 5\r\n")
    play.passes(6.0)
    assert code(client)[0] == 408
    play.loaded("b1", "sql-1")
    assert "b1 got POST" not in play.happened()


@pytest.mark.parametrize("waited_s", [0.0, 10.0])
def test_when_the_only_one_that_has_it_fails_another_one_loads_it(waited_s: float) -> None:
    """The time that this takes does not count for a class, either."""
    play = Loading(admission=FAST)
    client = play.asks()
    play.loaded("b1", "sql-1")
    play["b1"].sends(BAD)
    play.passes(waited_s)
    play.loaded("b2", "sql-1")
    assert play.model("b2") == "sql-1"
    play.answers("b2")
    assert b"x-penstock-attempts: 2" in client.written
    assert b"[DONE]" in client.written


def test_if_that_fails_too_the_failure_is_told(play: Loading) -> None:
    client = play.asks()
    play.loaded("b1", "sql-1")
    play["b1"].sends(BAD)
    play.fails("b2", "sql-1")
    assert code(client)[:2] == (502, "backend_error")


def test_a_reload_that_drops_the_adapter_lets_nobody_wait(play: Loading) -> None:
    client = play.asks()
    play.plane.adapters.follow({})
    play.turns()
    assert code(client)[:2] == (503, "no_backend")


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


def test_whose_last_load_is_the_oldest_comes_first() -> None:
    """A flood of first uses does not keep another client's waiting."""
    names = ("sql", "law", "art", "map", "tax")
    play = Loading(*(route(name) for name in names), backends=1, tenants=tenants(*"abc"))
    for tenant, model in zip("aaabc", names, strict=True):
        play.connects().sends(chat(f'"model":"{model}"', head=keyed(tenant)))
    assert play.loading == ["sql-1", "map-1"]  # a's first, and b's in the second place
    play.passes(1.0)
    play.fails("b1", "sql-1")
    assert play.loading == ["map-1", "law-1"]  # of a, which waited before c came
    play.fails("b1", "law-1")
    assert play.loading == ["map-1", "tax-1"]  # of c, before another one of a


def test_a_load_that_fails_after_a_backend_has_failed_counts_as_errors() -> None:
    play = Loading(SQL | {"fallbacks": [{"pool": "p", "model": "base", "on": ["errors"]}]})
    client = play.asks()
    play.loaded("b1", "sql-1")
    play["b1"].sends(BAD)
    play.fails("b2", "sql-1")
    record = client.exchange.request.record
    assert record.fell_back == "errors"
    assert play.model(record.backend) == "base"
    play.answers(record.backend)
    assert b"x-penstock-model: base" in client.written


def test_the_last_attempt_is_for_a_fall_back_that_loads_its_adapter_first() -> None:
    law = {"pool": "p", "model": "law-1", "on": ["errors"]}
    route = SQL | {"to": [{"pool": "p", "model": "base"}], "fallbacks": [law]}
    play = Loading(route, LAW, backends=3)
    client = play.asks()
    for name in ("b1", "b2"):
        play[name].sends(BAD)
    ((name, _),) = play.hangs
    play.loaded(name, "law-1")
    play.answers(name)
    assert b"[DONE]" in client.written


def test_the_name_is_listed_before_it_is_loaded_with_the_context_of_its_base(play: Loading) -> None:
    card = alias_cards(play.plane.routes, play.plane.fleet, "")["sql"]
    assert card is not None
    assert orjson.loads(card)["root"] == "sql-1"
    assert orjson.loads(card)["max_model_len"] == 4_096
    play.ejects("b1", "b2")
    assert "sql" not in alias_cards(play.plane.routes, play.plane.fleet, "")


# Beside other waits ---------------------------------------------------------------------------

FAST = {"classes": [{"name": "fast", "max_wait_s": 1}], "default_class": "fast"}


def test_who_is_held_for_a_backend_has_its_adapter_loaded_when_that_comes() -> None:
    play = Loading(backends=1, admission={"hold_for_backend_s": 30})
    play.ejects("b1")
    client = play.asks()
    play.passes(2.0)
    assert not play.hangs
    assert not client.written
    play.ejects()
    play.passes(3.0)
    play.loaded("b1", "sql-1")
    assert play.model("b1") == "sql-1"
    play.ejects("b1")
    late = play.asks()
    play.passes(35.0)
    assert b"no_backend" in late.written


@pytest.mark.parametrize("held", [True, False])
def test_neither_the_wait_for_a_backend_nor_that_for_a_load_counts_for_a_class(held: bool) -> None:
    """It waits for room after them, and is in time."""
    play = Loading(backends=1, admission=FAST | {"hold_for_backend_s": 30 * held})
    play.ejects(*["b1"] * held)
    client = play.asks()
    play.passes(5.0)
    play.ejects()
    play.passes(5.0)
    sent_after(play, client)


class Crowd(Loading):
    """Thirty long requests are held for pool `own`, with four backends. Their fall-back is one
    backend, b5, that is back and has to load the adapter."""

    def __init__(self) -> None:
        law = {"pool": "p", "model": "law-1", "on": ["no_backend"]}
        first = SQL | {"to": [{"pool": "own", "model": "base"}], "fallbacks": [law]}
        pools = [pool("own", 1, 2, 3, 4), pool("p", 5)]
        super().__init__(first, LAW, pools=pools, admission={"hold_for_backend_s": 120})
        for backend in self.backends:
            backend.contexts = {}
        self.ejects("b1", "b2", "b3", "b4", "b5")
        self.many = [self.connects() for _ in range(30)]
        for each in self.many:
            each.sends(chat('"model":"sql"', content="all work and no play " * 3_000))
        self.passes(1.0)
        self.ejects("b1", "b2", "b3", "b4")
        self.passes(1.0)

    @property
    def loads(self) -> int:
        return self.happened().count("b5 loads law-1 of /adapters/law")

    @property
    def held(self) -> int:
        return self.plane.admission.parked("own")[0]

    def own_is_back(self, tiny: int = 0) -> None:
        """Each of its backends is sent one, and nobody is told of an error."""
        self.ejects()
        self.passes(1.0)
        assert [each.own.requests for each in self.backends] == [1, 1, 1, 1, tiny]
        assert b"error" not in b"".join([bytes(each.written) for each in self.many])


def test_what_is_held_waits_on_while_a_fall_back_that_is_back_loads_its_adapter() -> None:
    play = Crowd()
    assert (play.loads, play.held) == (1, 30)
    play.passes(5.0)
    assert (play.loads, play.held) == (0, 30)
    play.own_is_back()
    assert play.held == 0
    play.loaded("b5", "law-1")
    play.turns()
    assert b"error" not in b"".join([bytes(each.written) for each in play.many])


def test_once_it_is_loaded_as_many_go_there_as_it_would_not_refuse() -> None:
    play = Crowd()
    play.loaded("b5", "law-1")
    play.passes(2.0)
    moved = play.plane.admission.pools["p"].queue.waiting
    tiny = play.backends[4].own.requests
    assert (play.held + moved + tiny, tiny <= 2) == (30, True)
    assert play.held > 5
    assert moved > 5
    play.own_is_back(tiny)


def test_a_load_that_fails_loses_nothing_that_is_held() -> None:
    play = Crowd()
    for _ in range(4):
        play.fails("b5", "law-1")
        play.passes(12.0)  # it rests for longer after each one
    assert (play.loads, play.held) == (5, 30)
    play.own_is_back()


def test_one_whose_fall_back_has_loaded_its_adapter_is_served_there() -> None:
    play = Crowd()
    for each in play.many[1:]:
        each.closes()
    play.loaded("b5", "law-1")
    play.passes(1.5)
    assert play.model("b5") == "law-1"
    play.answers("b5")
    assert b"[DONE]" in play.many[0].written


# Whose turn it is -----------------------------------------------------------------------------

MANY = 8


class Turns(Loading):
    """Tenants a, b, c and v. One backend of pool `p` loads, two at a time. `own` has none."""

    def __init__(self) -> None:
        routes: list[dict[str, Any]] = []
        for name in [*(f"ad{number}" for number in range(MANY)), "v", "w"]:
            loads: dict[str, Any] = {"pool": "p", "model": f"{name}-1"}
            load = {"match": {"model": name}, "to": [loads | {"lora_path": f"/{name}"}]}
            routes.append(load | {"name": name})
        super().__init__(
            *routes,
            pools=[pool("own", 1), pool("p", 2)],
            tenants=tenants(*"abcv"),
            admission={"hold_for_backend_s": 300},
        )
        self.ejects("b1", "b2")

    def comes(self, tenant: str, model: str) -> Client:
        client = self.connects()
        client.sends(chat(f'"model":"{model}"', head=keyed(tenant)))
        return client

    def crowd(self) -> None:
        """Tenants a and b want many adapters."""
        for number in range(MANY):
            self.comes("ab"[number % 2], f"ad{number}")

    def begins(self) -> None:
        """The backend that loads is back."""
        self.backends[1].state = State.READY

    def next_after(self, name: str) -> list[str]:
        """What begins to load when this one is loaded, before anything is looked at again."""
        before = set(self.loading)
        self.loaded("b2", name)
        return [each for each in self.loading if each not in before]


def test_who_comes_in_the_moment_in_which_a_load_ends_comes_after_those_that_wait() -> None:
    play = Turns()
    play.begins()
    play.crowd()
    late, backend = play.connects(), play.backends[1]
    play.turns()
    backend.models = {**(backend.models or {}), "ad0-1": b"{}"}
    play.hangs.pop(("b2", "ad0-1")).set_result(Outcome())
    data = chat('"model":"w"', head=keyed("c"))
    play.loop.call_soon(late.connection.data_received, data)
    play.turns()
    assert play.loading == ["ad1-1", "ad2-1"]
    play.passes(1.0)
    play.loaded("b2", "ad1-1")
    play.loaded("b2", "ad2-1")
    assert play.loading == ["ad3-1", "ad4-1"]
    assert play.next_after("ad3-1") == ["w-1"]
