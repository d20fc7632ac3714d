"""Transcripts of requests that wait for a backend, and have a fall-back that may be back sooner."""

from typing import Any

import orjson
import pytest

from penstock.balancing.backend import State
from penstock.proxy.data.configuration import configure, draft
from penstock.proxy.wire.host import Names
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Play, chat, plain, token
from tests.unit.proxy.data.test_routing import ALIAS, Routed, asks

# Every name goes to the fall-back as it is.
ANY_NAME = ALIAS | {
    "match": {"model": "gpt-*"},
    "fallbacks": [{"pool": "large", "on": ["no_backend"]}],
}


def test_no_backend_is_waited_for_where_there_is_a_fall_back() -> None:
    play = Routed(ALIAS, admission={"hold_for_backend_s": 2})
    for backend in play.backends[:2]:
        backend.state = State.EJECTED
    client = asks(play)
    assert orjson.loads(play["b3"].body)["model"] == "llama"
    play.answers("b3")
    assert b"HTTP/1.1 200" in client.written
    play.close()


@pytest.mark.parametrize("back", ["b1", "b3"], ids=["its own pool", "the fall-back's"])
def test_while_the_fall_back_is_down_too_it_waits_for_whichever_is_back_first(back: str) -> None:
    play = Routed(ALIAS, admission={"hold_for_backend_s": 5})
    for backend in play.backends:
        backend.state = State.EJECTED
    client = asks(play)
    parked = play.plane.admission.parked
    assert (parked("small")[0], parked("large")[0]) == (1, 0)
    play.passes(1.0)
    for backend in play.backends:
        backend.state = State.READY if backend.name == back else State.EJECTED
    play.passes(1.0)
    play.answers(back)
    assert b"HTTP/1.1 200" in client.written
    play.close()


def test_without_a_fall_back_that_can_serve_its_own_pool_is_told_of() -> None:
    """A reload may have taken the pool of the fall-back away."""
    play = Routed(ALIAS)
    client = asks(play)
    old = play.plane.configuration
    small = old.settings.model_copy(update={"pools": old.settings.pools[:1], "routes": ()})
    drafted, names = draft(small, {}, None), Names(has_way=lambda _: True)
    now, running = play.loop.time, old.fleet
    new = configure(drafted, play.loop, names, old.members, running=running, now=now)
    play.plane.use(new)
    for name in ("b1", "b2"):
        play[name].sends(plain("502 Bad Gateway"))
        play.turns()
    assert b"HTTP/1.1 502" in client.written
    play.close()


def down(play: Play, *names: str) -> None:
    for backend in play.backends:
        backend.state = State.EJECTED if backend.name in names else State.READY


def test_one_without_a_place_elsewhere_holds_up_no_other_of_its_route() -> None:
    """Its model is one that the fall-back does not serve."""
    play = Routed(ANY_NAME, admission={"hold_for_backend_s": 60})
    down(play, "b1", "b2", "b3")
    play.backends[2].models = {"gpt-small": b"{}"}
    other = play.connects()
    other.sends(chat('"model":"gpt-made-up"'))
    client = asks(play)
    down(play, "b1", "b2")
    play.passes(1.0)
    play.answers("b3")
    assert b"[DONE]" in client.written
    other.closes()
    play.close()


def test_the_time_for_which_it_was_held_counts_neither_at_the_fall_back() -> None:
    play = Routed(ALIAS, admission={"hold_for_backend_s": 60})
    play.backends[2].max_requests = 1
    down(play, "b1", "b2", "b3")
    first, second = play.client, play.connects()
    for each in (first, second):
        each.sends(chat('"model":"gpt-small"'))
    play.passes(40.0)
    down(play, "b1", "b2")
    play.passes(1.0)
    play.answers("b3")
    play.passes(0.5)
    play.answers("b3")
    assert b"[DONE]" in first.written
    assert b"[DONE]" in second.written
    second.closes()
    play.close()


def test_while_all_that_failed_it_serve_others_it_goes_to_the_fall_back_once_that_is_back() -> None:
    play = Routed(ALIAS, admission={"hold_for_backend_s": 60})
    down(play, "b3")
    client = asks(play)
    for name in ("b1", "b2"):
        play[name].sends(plain("502 Bad Gateway"))
        play.turns()
    down(play)
    play.passes(0.8)
    play.answers("b3")
    assert b"[DONE]" in client.written
    play.close()


def test_many_names_that_nobody_serves_hold_up_none_that_the_fall_back_serves() -> None:
    """A wake looks at 64. The next one goes on with the rest, in a lower class, too."""
    play = Routed(ANY_NAME, admission={"hold_for_backend_s": 60})
    down(play, "b1", "b2", "b3")
    play.backends[2].models = {"gpt-small": b"{}"}
    others = [play.connects() for _ in range(70)]
    for number, other in enumerate(others):
        other.sends(chat(f'"model":"gpt-made-up-{number}"'))
    client = play.client
    client.sends(chat('"model":"gpt-small"', head=b"x-penstock-priority: batch\r\n"))
    down(play, "b1", "b2")
    play.passes(1.0)
    play.answers("b3")
    assert b"[DONE]" in client.written
    for other in others:
        other.closes()
    play.close()


CONTEXTS = ("qwen", 131_072), ("llama", 8_192)
LONG = "all work and no play makes Jack a dull boy " * 4_000


def with_contexts(**settings: Any) -> Routed:
    play = Routed(ALIAS, **settings)
    for backend, (model, tokens) in zip(play.backends[1:], CONTEXTS, strict=True):
        backend.contexts = {None: tokens, model: tokens}
    play.backends[0].contexts = play.backends[1].contexts
    return play


def test_a_prompt_goes_to_no_fall_back_whose_context_it_is_far_over() -> None:
    play = with_contexts(admission={"hold_for_backend_s": 60})
    down(play, "b1", "b2")
    play.client.sends(chat('"model":"gpt-small"', content=LONG))
    assert play.plane.admission.parked("small")[0] == 1
    down(play, "b2", "b3")
    play.passes(1.0)
    play.answers("b1")
    assert b"[DONE]" in play.client.written
    play.close()


def test_without_holding_its_client_is_told_of_its_own_pool() -> None:
    play = with_contexts()
    down(play, "b1", "b2")
    play.client.sends(chat('"model":"gpt-small"', content=LONG))
    assert b"HTTP/1.1 503" in play.client.written
    play.close()


def test_a_prompt_that_may_fit_goes_there() -> None:
    play = with_contexts()
    down(play, "b1", "b2")
    play.client.sends(chat('"model":"gpt-small"', content=LONG[: len(LONG) // 5]))
    play.answers("b3")
    assert b"[DONE]" in play.client.written
    play.close()


def test_the_time_held_counts_nowhere_even_if_its_own_pool_has_failed_it_since() -> None:
    """Held for 40 s, and failed by both. The class gives 30 s: it waits for the fall-back."""
    play = Routed(ALIAS, admission={"hold_for_backend_s": 120})
    play.backends[2].max_requests = 1
    down(play, "b1", "b2", "b3")
    asks(play)
    play.passes(40.0)
    down(play)
    play.passes(0.3)
    for backend in play.backends[:2]:
        backend.models = {"qwen": b"{}"}
    busy = play.connects()
    busy.sends(chat('"model":"llama"'))
    other = play["b3"]
    for name in ("b1", "b2"):
        play[name].sends(plain("502 Bad Gateway"))
        play.turns()
    play.passes(1.0)
    other.sends(STREAM, token("a"), DONE, END)
    play.turns()
    play.passes(0.2)
    play.answers("b3")
    assert b"[DONE]" in play.client.written
    busy.closes()
    play.close()


def test_a_long_prompt_without_a_place_hides_no_short_one() -> None:
    play = with_contexts(admission={"hold_for_backend_s": 60})
    down(play, "b1", "b2", "b3")
    long = play.connects()
    long.sends(chat('"model":"gpt-small"', content=LONG))
    asks(play)
    down(play, "b1", "b2")
    play.passes(1.0)
    play.answers("b3")
    assert b"[DONE]" in play.client.written
    assert play.plane.admission.parked("small")[0] == 1
    long.closes()
    play.close()


def test_new_names_in_every_moment_do_not_keep_a_pass_from_its_end() -> None:
    """Its model is served a second after the fall-back is back."""
    play = Routed(ANY_NAME, admission={"hold_for_backend_s": 60})
    down(play, "b1", "b2", "b3")
    play.backends[2].models = {"other": b"{}"}
    asks(play)
    down(play, "b1", "b2")
    others: list[Any] = []
    for moment in range(30):
        if moment == 10:
            play.backends[2].models = {"other": b"{}", "gpt-small": b"{}"}
        for other in others:
            other.closes()
        others = [play.connects() for _ in range(80)]
        for number, other in enumerate(others):
            other.sends(chat(f'"model":"gpt-{moment}-{number}"'))
        play.passes(0.1)
    play.answers("b3")
    assert b"[DONE]" in play.client.written
    for other in others:
        other.closes()
    play.close()


def post(path: bytes, **fields: Any) -> bytes:
    body = orjson.dumps({"model": "gpt-small", "stream": True} | fields)
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % path
    return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def test_a_long_prompt_without_a_place_hides_no_list_of_short_ones() -> None:
    """All together these are longer. Each for itself fits."""
    play = with_contexts(admission={"hold_for_backend_s": 60})
    down(play, "b1", "b2", "b3")
    long = play.connects()
    long.sends(post(b"/v1/completions", prompt=LONG))
    play.client.sends(post(b"/v1/completions", prompt=[LONG[: len(LONG) // 8]] * 10))
    down(play, "b1", "b2")
    play.passes(1.0)
    assert len(orjson.loads(play["b3"].body)["prompt"]) == 10
    assert play.plane.admission.parked("small")[0] == 1
    long.closes()
    play.close()


def test_one_that_goes_on_from_a_stored_response_hides_none_that_does_not() -> None:
    """It stays where that response is. It waited for room there when its backend was lost."""
    play = Routed(ALIAS, admission={"hold_for_backend_s": 60})
    play.plane.gate.owners.put("resp_1", "b1", play.loop.now_s)
    play.backends[0].max_requests = 1
    play.backends[1].max_requests = 1
    busy = [play.connects() for _ in range(2)]
    for each in busy:
        each.sends(chat('"model":"gpt-small"'))
    stored = play.connects()
    stored.sends(post(b"/v1/responses", input="x", previous_response_id="resp_1"))
    asks(play)
    down(play, "b1", "b2")
    play.passes(1.0)
    play.answers("b3")
    assert b"[DONE]" in play.client.written
    assert play.plane.admission.parked("small")[0] == 1
    for each in (*busy, stored):
        each.closes()
    play.close()


def test_one_that_was_drawn_to_a_target_hides_none_that_was_drawn_to_another() -> None:
    """Both wait for their fall-back. The other's target is a further one for it."""
    pools = [
        {"name": name, "backends": [{"name": name, "url": f"http://10.0.0.{number}:1"}]}
        for number, name in enumerate("ABC", 1)
    ]
    route = {
        "name": "halves",
        "match": {"model": "m"},
        "to": [{"pool": "A", "weight": 50}, {"pool": "B", "weight": 50}],
        "fallbacks": [{"pool": pool, "on": ["no_backend"]} for pool in "CAB"],
    }
    play = Play(3, pools=pools, routes=[route], admission={"hold_for_backend_s": 60})

    def drawn(session: int) -> Any:
        client = play.connects()
        client.sends(chat('"model":"m"', head=b"x-session-id: s%d\r\n" % session))
        return client

    sessions: dict[str, int] = {}
    for number in range(20):
        client = drawn(number)
        sessions["A" if play.backends[0].own.requests else "B"] = number
        client.closes()
        play.turns()
    down(play, "A", "B")
    play.backends[2].max_requests = 1
    clients = [drawn(sessions[name]) for name in "AAB"]
    down(play, "A", "B", "C")
    play.passes(1.0)
    assert play.plane.admission.parked("C")[0] == 2
    down(play, "B", "C")
    play.passes(1.0)
    assert play.backends[0].own.requests == 1
    for client in clients:
        client.closes()
    play.close()
