"""How a wait for a load counts beside other waits."""

from typing import Any

import orjson

from penstock.balancing.backend import State
from tests.unit.proxy.data.loading import LAW, SQL, Loading, sent_after
from tests.unit.proxy.data.playbook import chat, plain

HELD: dict[str, Any] = {"admission": {"hold_for_backend_s": 30}}


def test_who_is_held_for_a_backend_has_its_adapter_loaded_when_that_comes() -> None:
    play = Loading(backends=1, **HELD)
    backend = play.backends[0]
    backend.state = State.EJECTED
    client = play.asks()
    play.passes(2.0)
    assert not play.hangs
    assert not client.written
    backend.state = State.READY
    play.passes(3.0)
    play.loaded("b1", "sql-1")
    assert orjson.loads(play["b1"].body)["model"] == "sql-1"
    play.answers("b1")
    play.close()


def test_neither_the_wait_for_a_backend_nor_that_for_a_load_counts_for_a_class() -> None:
    classes = [{"name": "fast", "max_wait_s": 1}]
    admission = {"classes": classes, "default_class": "fast", "hold_for_backend_s": 30}
    play = Loading(backends=1, admission=admission)
    backend = play.backends[0]
    backend.state = State.EJECTED
    client = play.asks()
    play.passes(5.0)
    backend.state = State.READY
    play.passes(5.0)
    sent_after(play, client)
    play.close()


def test_who_is_held_for_too_long_is_told_so() -> None:
    play = Loading(backends=1, **HELD)
    play.backends[0].state = State.EJECTED
    client = play.asks(head=b"")
    play.passes(35.0)
    assert b"no_backend" in client.written
    play.close()


def test_the_time_of_a_load_does_not_count_for_a_class() -> None:
    """It waits for room after it, and is in time."""
    classes = [{"name": "fast", "max_wait_s": 1}]
    play = Loading(backends=1, admission={"classes": classes, "default_class": "fast"})
    client = play.asks()
    play.passes(10.0)
    sent_after(play, client)
    play.close()


def test_nor_does_it_when_another_backend_loads_after_a_failure() -> None:
    classes = [{"name": "fast", "max_wait_s": 1}]
    play = Loading(admission={"classes": classes, "default_class": "fast"})
    client = play.asks()
    play.loaded("b1", "sql-1")
    play["b1"].sends(plain("502 Bad Gateway"))
    play.passes(10.0)
    play.loaded("b2", "sql-1")
    play.answers("b2")
    assert b"[DONE]" in client.written
    play.close()


class Crowd(Loading):
    """Thirty long requests are held for pool `own`, with four backends. Their fall-back is one
    backend, b5, that is back and has to load the adapter."""

    def __init__(self) -> None:
        names = {"own": (1, 2, 3, 4), "p": (5,)}
        pools = [
            {
                "name": name,
                "policy": "round_robin",
                "backends": [{"name": f"b{n}", "url": f"http://10.0.0.{n}:1"} for n in numbers],
            }
            for name, numbers in names.items()
        ]
        law = {"pool": "p", "model": "law-1", "on": ["no_backend"]}
        first = SQL | {"to": [{"pool": "own", "model": "base"}], "fallbacks": [law]}
        admission = {"hold_for_backend_s": 120}
        super().__init__(first, LAW, backends=5, pools=pools, admission=admission)
        for backend in self.backends:
            backend.state = State.EJECTED
            backend.contexts = {}
        self.many = [self.connects() for _ in range(30)]
        for each in self.many:
            each.sends(chat('"model":"sql"', content="all work and no play " * 3_000))
        self.passes(1.0)
        self.backends[4].state = State.READY
        self.passes(1.0)

    @property
    def loads(self) -> int:
        return self.happened().count("b5 loads law-1 of /adapters/law")

    @property
    def held(self) -> int:
        return self.plane.admission.parked("own")[0]

    def own_is_back(self) -> None:
        for backend in self.backends[:4]:
            backend.state = State.READY
        self.passes(1.0)

    def end(self) -> None:
        assert b"error" not in b"".join([bytes(each.written) for each in self.many])
        for each in self.many:
            each.closes()
        self.close()


def test_what_is_held_waits_on_while_a_fall_back_that_is_back_loads_its_adapter() -> None:
    play = Crowd()
    assert (play.loads, play.held) == (1, 30)
    play.passes(5.0)
    assert (play.loads, play.held) == (0, 30)
    play.own_is_back()
    assert play.held == 0
    assert [each.own.requests for each in play.backends] == [1, 1, 1, 1, 0]
    play.loaded("b5", "law-1")
    play.end()


def test_once_it_is_loaded_as_many_go_there_as_it_would_not_refuse() -> None:
    play = Crowd()
    play.loaded("b5", "law-1")
    play.passes(2.0)
    moved = play.plane.admission.pools["p"].queue.waiting
    tiny = play.backends[4].own.requests
    assert (play.held + moved + tiny, tiny <= 2) == (30, True)
    assert play.held > 5
    assert moved > 5
    play.own_is_back()
    assert [each.own.requests for each in play.backends] == [1, 1, 1, 1, tiny]
    play.end()


def test_a_load_that_fails_loses_nothing_that_is_held() -> None:
    play = Crowd()
    for _ in range(4):
        play.fails("b5", "law-1")
        play.passes(12.0)  # it rests for longer after each one
    assert (play.loads, play.held) == (5, 30)
    play.own_is_back()
    assert [each.own.requests for each in play.backends] == [1, 1, 1, 1, 0]
    play.fails("b5", "law-1")
    play.end()


def test_one_whose_fall_back_has_loaded_its_adapter_is_served_there() -> None:
    play = Crowd()
    for each in play.many[1:]:
        each.closes()
    play.loaded("b5", "law-1")
    play.passes(1.5)
    assert orjson.loads(play["b5"].body)["model"] == "law-1"
    play.answers("b5")
    assert b"[DONE]" in play.many[0].written
    play.many[0].closes()
    play.close()
