"""How a wait for a load counts beside other waits."""

from typing import Any

import orjson

from penstock.balancing.backend import State
from tests.unit.proxy.data.loading import LAW, SQL, Loading, sent_after
from tests.unit.proxy.data.playbook import plain

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


def test_what_is_held_goes_to_a_fall_back_that_is_back_and_loads_its_adapter_first() -> None:
    pools = [
        {"name": name, "backends": [{"name": f"b{number}", "url": f"http://10.0.0.{number}:1"}]}
        for number, name in enumerate(("own", "p"), 1)
    ]
    law = {"pool": "p", "model": "law-1", "on": ["no_backend"]}
    first = SQL | {"to": [{"pool": "own", "model": "base"}], "fallbacks": [law]}
    play = Loading(first, LAW, pools=pools, admission={"hold_for_backend_s": 60})
    for backend in play.backends:
        backend.state = State.EJECTED
    client = play.asks()
    play.passes(1.0)
    assert play.plane.admission.held("own")[0] == 1
    play.backends[1].state = State.READY
    play.passes(0.3)
    assert "b2 loads law-1 of /adapters/law" in play.happened()
    play.loaded("b2", "law-1")
    play.answers("b2")
    assert b"[DONE]" in client.written
    play.close()
