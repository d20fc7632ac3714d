"""Transcripts of requests that wait for a backend, and have a fall-back that may be back sooner."""

from typing import Any

import orjson
import pytest

from penstock.balancing.admission.queued_request import Elsewhere
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Client, Play, chat, pool, token
from tests.unit.proxy.data.test_routing import ALIAS, Routed, asks, posts

# Every name goes to the fall-back as it is.
ANY_NAME = ALIAS | {
    "match": {"model": "gpt-*"},
    "fallbacks": [{"pool": "large", "on": ["no_backend"]}],
}
CONTEXTS = ("qwen", 131_072), ("llama", 8_192)
LONG = "all work and no play makes Jack a dull boy " * 4_000


def held(*routes: dict[str, Any], hold_s: float = 60, down: str = "b1 b2 b3") -> Routed:
    """Requests are held for a backend, and these are down."""
    play = Routed(*routes or (ALIAS,), admission={"hold_for_backend_s": hold_s})
    play.ejects(*down.split())
    return play


def with_contexts(play: Routed) -> Routed:
    for backend, (model, tokens) in zip(play.backends[1:], CONTEXTS, strict=True):
        backend.contexts = {None: tokens, model: tokens}
    play.backends[0].contexts = play.backends[1].contexts
    return play


def served(play: Routed, name: str = "b3", time_s: float = 1.0) -> None:
    """Only a fall-back is back, or one of its own pool, and serves the play's client."""
    play.ejects(*{"b1", "b2", "b3"} - {name})
    play.passes(time_s)
    play.answers(name)
    assert b"[DONE]" in play.client.written


def long_one(play: Routed, content: str = LONG) -> None:
    play.client.sends(chat('"model":"gpt-small"', content=content))


def test_no_backend_is_waited_for_where_there_is_a_fall_back() -> None:
    play = held(hold_s=2, down="b1 b2")
    client = asks(play)
    assert play.model("b3") == "llama"
    play.answers("b3")
    assert b"HTTP/1.1 200" in client.written


@pytest.mark.parametrize("back", ["b1", "b3"], ids=["its own pool", "the fall-back's"])
def test_while_the_fall_back_is_down_too_it_waits_for_whichever_is_back_first(back: str) -> None:
    play = held(hold_s=5)
    asks(play)
    parked = play.plane.admission.parked
    assert (parked("small")[0], parked("large")[0]) == (1, 0)
    play.passes(1.0)
    served(play, back)


def test_without_a_fall_back_that_can_serve_its_own_pool_is_told_of() -> None:
    """A reload may have taken the pool of the fall-back away."""
    play = Routed(ALIAS)
    client = asks(play)
    play.reloads(pools=play.plane.settings.pools[:1], routes=())
    play.fails("b1", "b2")
    assert b"HTTP/1.1 502" in client.written


def test_the_time_for_which_it_was_held_counts_neither_at_the_fall_back() -> None:
    play = held()
    play.backends[2].max_requests = 1
    second = play.connects()
    for each in (play.client, second):
        each.sends(chat('"model":"gpt-small"'))
    play.passes(40.0)
    served(play)
    play.passes(0.5)
    play.answers("b3")
    assert b"[DONE]" in second.written


def test_while_all_that_failed_it_serve_others_it_goes_to_the_fall_back_once_that_is_back() -> None:
    play = held(down="b3")
    client = asks(play)
    play.fails("b1", "b2")
    play.ejects()
    play.passes(0.8)
    play.answers("b3")
    assert b"[DONE]" in client.written


@pytest.mark.parametrize(("names", "head"), [(1, b""), (70, b"x-penstock-priority: batch\r\n")])
def test_names_that_nobody_serves_hold_up_none_that_the_fall_back_serves(
    names: int, head: bytes
) -> None:
    """A wake looks at 64. The next one goes on with the rest, in a lower class, too."""
    play = held(ANY_NAME)
    play.backends[2].models = {"gpt-small": b"{}"}
    for number in range(names):
        play.connects().sends(chat(f'"model":"gpt-made-up-{number}"'))
    asks(play, head=head)
    served(play)


def test_a_prompt_goes_to_no_fall_back_whose_context_it_is_far_over() -> None:
    play = with_contexts(held(down="b1 b2"))
    long_one(play)
    assert play.plane.admission.parked("small")[0] == 1
    served(play, "b1")


@pytest.mark.parametrize("part", [1, 5], ids=["too long", "that may fit"])
def test_without_holding_only_a_prompt_that_may_fit_goes_to_the_fall_back(part: int) -> None:
    play = with_contexts(Routed(ALIAS))
    play.ejects("b1", "b2")
    long_one(play, LONG[: len(LONG) // part])
    if part == 1:
        assert b"HTTP/1.1 503" in play.client.written  # its client is told of its own pool
    else:
        served(play)


def test_the_time_held_counts_nowhere_even_if_its_own_pool_has_failed_it_since() -> None:
    """Held for 40 s, and failed by both. The class gives 30 s: it waits for the fall-back."""
    play = held(hold_s=120)
    play.backends[2].max_requests = 1
    asks(play)
    play.passes(40.0)
    play.ejects()
    play.passes(0.3)
    for backend in play.backends[:2]:
        backend.models = {"qwen": b"{}"}
    play.connects().sends(chat('"model":"llama"'))
    other = play["b3"]
    play.fails("b1", "b2")
    play.passes(1.0)
    other.sends(STREAM, token("a"), DONE, END)
    play.passes(0.2)
    play.answers("b3")
    assert b"[DONE]" in play.client.written


def test_a_long_prompt_without_a_place_hides_no_short_one() -> None:
    play = with_contexts(held())
    play.connects().sends(chat('"model":"gpt-small"', content=LONG))
    asks(play)
    served(play)
    assert play.plane.admission.parked("small")[0] == 1


def test_new_names_in_every_moment_do_not_keep_a_pass_from_its_end() -> None:
    """Its model is served a second after the fall-back is back."""
    play = held(ANY_NAME)
    play.backends[2].models = {"other": b"{}"}
    asks(play)
    play.ejects("b1", "b2")
    others: list[Client] = []
    for moment in range(30):
        if moment == 10:
            play.backends[2].models = {"other": b"{}", "gpt-small": b"{}"}
        for other in others:
            other.closes()
        others = [play.connects() for _ in range(80)]
        for number, other in enumerate(others):
            other.sends(chat(f'"model":"gpt-{moment}-{number}"'))
        play.passes(0.1)
    served(play, time_s=0.0)


def test_a_long_prompt_without_a_place_hides_no_list_of_short_ones() -> None:
    """All together these are longer. Each for itself fits."""
    play = with_contexts(held())
    posts(play, completion(LONG), "/v1/completions", play.connects())
    posts(play, completion([LONG[: len(LONG) // 8]] * 10), "/v1/completions")
    play.ejects("b1", "b2")
    play.passes(1.0)
    assert len(orjson.loads(play["b3"].body)["prompt"]) == 10
    assert play.plane.admission.parked("small")[0] == 1


def completion(prompt: object) -> bytes:
    return orjson.dumps({"model": "gpt-small", "stream": True, "prompt": prompt})


def test_one_that_goes_on_from_a_stored_response_hides_none_that_does_not() -> None:
    """It stays where that response is. It waited for room there when its backend was lost."""
    play = held(down="")
    play.plane.gate.owners.put("resp_1", "b1", play.loop.now_s)
    for backend in play.backends[:2]:
        backend.max_requests = 1
        play.connects().sends(chat('"model":"gpt-small"'))
    body = b'{"model":"gpt-small","stream":true,"input":"x","previous_response_id":"resp_1"}'
    posts(play, body, client=play.connects())
    asks(play)
    served(play)
    assert play.plane.admission.parked("small")[0] == 1


def test_one_that_was_drawn_to_a_target_hides_none_that_was_drawn_to_another() -> None:
    """Both wait for their fall-back. The other's target is a further one for it."""
    route = {
        "name": "halves",
        "match": {"model": "m"},
        "to": [{"pool": "A", "weight": 50}, {"pool": "B", "weight": 50}],
        "fallbacks": [{"pool": pool, "on": ["no_backend"]} for pool in "CAB"],
    }
    pools = [pool(name, number) for number, name in enumerate("ABC", 1)]
    play = Play(pools=pools, routes=[route], admission={"hold_for_backend_s": 60})

    def drawn(session: int) -> Client:
        client = play.connects()
        client.sends(chat('"model":"m"', head=b"x-session-id: s%d\r\n" % session))
        return client

    sessions: dict[str, int] = {}
    for number in range(20):
        client = drawn(number)
        sessions["A" if play.backends[0].own.requests else "B"] = number
        client.closes()
    play.ejects("b1", "b2")
    play.backends[2].max_requests = 1
    for name in "AAB":
        drawn(sessions[name])
    play.ejects("b1", "b2", "b3")
    play.passes(1.0)
    assert play.plane.admission.parked("C")[0] == 2
    play.ejects("b2", "b3")
    play.passes(1.0)
    assert play.backends[0].own.requests == 1


# The fall-back is back, and cannot serve them all ------------------------------------------------


class Pools(Play):
    """Pool `own` with four backends. Its fall-backs are `tiny`, and for overload perhaps `next`."""

    def __init__(self, *, overload: bool = False) -> None:
        fallbacks = [{"pool": "tiny", "on": ["no_backend"]}]
        fallbacks += [{"pool": "next", "on": ["overload"]}] * overload
        own = {"name": "all", "match": {"model": "m"}, "to": [{"pool": "own"}]}
        super().__init__(
            pools=[pool("own", 1, 2, 3, 4), pool("tiny", 5), pool("next", 6)],
            routes=[own | {"fallbacks": fallbacks}],
            admission={"hold_for_backend_s": 120},
        )
        self.ejects("b1", "b2", "b3", "b4", "b5", "b6")
        self.many = [self.connects() for _ in range(30)]
        for each in self.many:
            each.sends(chat('"model":"m"', content=LONG[: len(LONG) * 7 // 20]))

    @property
    def answered(self) -> list[bytes]:
        return [bytes(each.written) for each in self.many if each.written]

    def queued(self, name: str) -> int:
        found = self.plane.admission.pools.get(name)
        return found.queue.waiting if found is not None else 0


def test_what_a_small_fall_back_would_refuse_is_held_on() -> None:
    play = Pools()
    play.passes(5.0)
    play.ejects("b1", "b2", "b3", "b4", "b6")
    play.passes(2.0)
    assert play.answered == []
    parked, moved = play.plane.admission.parked("own")[0], play.queued("tiny")
    tiny = play.backends[4].own.requests
    assert (parked + moved + tiny, tiny <= 2) == (30, True)
    assert parked > 5
    assert moved > 5
    waits = [each.wait for each in play.plane.admission.pools["own"].queue.oldest(30)]
    again_s = [each.stays_s for each in waits if each is not None]
    assert min(again_s) > play.loop.now_s - 0.5  # not looked at in each wake
    play.ejects()
    play.passes(1.0)
    assert play.answered == []
    assert [each.own.requests for each in play.backends] == [1, 1, 1, 1, tiny, 0]


def test_when_its_time_is_over_the_fall_back_says_what_its_client_is_told() -> None:
    play = Pools()
    play.ejects("b1", "b2", "b3", "b4", "b6")
    play.passes(2.0)
    play.backends[4].max_requests = 1
    play.passes(120.0)
    assert play.plane.admission.parked("own")[0] == 0
    assert b'"code":"overloaded"' in b"".join(play.answered)
    assert b'"code":"no_backend"' not in b"".join(play.answered)


def test_what_it_would_refuse_goes_to_the_one_for_overload() -> None:
    play = Pools(overload=True)
    play.ejects("b1", "b2", "b3", "b4")
    play.passes(1.0)
    assert play.answered == []
    assert play.plane.admission.parked("own")[0] == 0
    assert min(play.queued("tiny"), play.queued("next")) > 5


def test_one_that_a_backend_has_by_now_stays_there() -> None:
    """A fault at another request has put off that it was told."""
    play = Pools()
    first = play.plane.admission.pools["own"].queue.oldest(1)[0]
    play.ejects("b6")
    play.passes(1.0)
    assert not first.waits
    play.ejects("b1", "b2", "b3", "b4", "b6")
    first.ready(Elsewhere())
    play.turns()
    assert play.model("b1") == "m"
    assert (play.backends[0].own.requests, play.backends[4].own.requests) == (1, 0)


def test_each_time_for_which_it_was_held_is_left_out_and_none_in_which_it_waited() -> None:
    """It is held before its own pool, and again before its fall-back's. The class gives 30 s."""
    route = {
        "name": "all",
        "match": {"model": "m"},
        "to": [{"pool": "p1"}],
        "fallbacks": [{"pool": pool, "on": ["no_backend"]} for pool in ("p2", "p3")],
    }
    pools = [pool(f"p{n}", n) for n in (1, 2, 3)]
    longer: dict[str, Any] = {"admission": {"hold_for_backend_s": 120}, "timeouts": {"hold_s": 600}}
    play = Play(pools=pools, routes=[route], **longer)
    for backend in play.backends[1:]:
        backend.max_requests = 1
    play.ejects("b1", "b2", "b3")
    clients = [play.connects() for _ in range(3)]
    for each in clients:
        each.sends(chat('"model":"m"'))
    play.passes(40.0)
    play.ejects("b1", "b3")
    play.passes(5.0)
    assert play.plane.admission.pools["p2"].queue.waiting == 2
    play.ejects("b1", "b2", "b3")
    play.passes(40.0)
    play.ejects("b1", "b2")
    play.passes(20.0)
    assert play.plane.admission.pools["p3"].queue.waiting == 1
    play.passes(8.0)
    assert b"overloaded" in b"".join(bytes(each.written) for each in clients)
