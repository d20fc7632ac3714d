"""Transcripts of requests that are held, and whose fall-back is back but cannot serve them all."""

from typing import Any

import orjson

from penstock.balancing.admission.queued_request import Elsewhere
from tests.unit.proxy.data.playbook import Client, Play, chat
from tests.unit.proxy.data.test_held_on_routes import down

WORDS = "all work and no play makes Jack a dull boy " * 1_400


class Pools(Play):
    """Pool `own` with four backends. Its fall-backs are `tiny`, and for overload perhaps `next`."""

    def __init__(self, *, overload: bool = False) -> None:
        names = {"own": ["b1", "b2", "b3", "b4"], "tiny": ["b5"], "next": ["b6"]}
        fallbacks = [{"pool": "tiny", "on": ["no_backend"]}]
        fallbacks += [{"pool": "next", "on": ["overload"]}] * overload
        super().__init__(
            6,
            pools=[
                {"name": name, "policy": "round_robin", "backends": [_backend(b) for b in of]}
                for name, of in names.items()
            ],
            routes=[
                {
                    "name": "all",
                    "match": {"model": "m"},
                    "to": [{"pool": "own"}],
                    "fallbacks": fallbacks,
                }
            ],
            admission={"hold_for_backend_s": 120},
        )
        self.many: list[Client] = []
        down(self, "b1", "b2", "b3", "b4", "b5", "b6")
        for _ in range(30):
            self.many.append(self.connects())
            self.many[-1].sends(chat('"model":"m"', content=WORDS))

    @property
    def answered(self) -> list[bytes]:
        return [bytes(each.written) for each in self.many if each.written]

    def queued(self, pool: str) -> int:
        found = self.plane.admission.pools.get(pool)
        return found.queue.waiting if found is not None else 0

    def end(self) -> None:
        for each in self.many:
            each.closes()
        self.close()


def _backend(name: str) -> dict[str, Any]:
    return {"name": name, "url": f"http://10.0.0.{name[1:]}:1"}


def test_what_a_small_fall_back_would_refuse_is_held_on() -> None:
    play = Pools()
    play.passes(5.0)
    down(play, "b1", "b2", "b3", "b4", "b6")
    play.passes(2.0)
    assert play.answered == []
    held, moved = play.plane.admission.parked("own")[0], play.queued("tiny")
    tiny = play.backends[4].own.requests
    assert (held + moved + tiny, tiny <= 2) == (30, True)
    assert held > 5
    assert moved > 5
    waits = [each.wait for each in play.plane.admission.pools["own"].queue.oldest(30)]
    again_s = [each.stays_s for each in waits if each is not None]
    assert min(again_s) > play.loop.now_s - 0.5  # not looked at in each wake
    down(play)
    play.passes(1.0)
    assert play.answered == []
    assert [each.own.requests for each in play.backends] == [1, 1, 1, 1, tiny, 0]
    play.end()


def test_when_its_time_is_over_the_fall_back_says_what_its_client_is_told() -> None:
    play = Pools()
    down(play, "b1", "b2", "b3", "b4", "b6")
    play.passes(2.0)
    play.backends[4].max_requests = 1
    play.passes(120.0)
    assert play.plane.admission.parked("own")[0] == 0
    assert b'"code":"overloaded"' in b"".join(play.answered)
    assert b'"code":"no_backend"' not in b"".join(play.answered)
    play.end()


def test_what_it_would_refuse_goes_to_the_one_for_overload() -> None:
    play = Pools(overload=True)
    down(play, "b1", "b2", "b3", "b4")
    play.passes(1.0)
    assert play.answered == []
    assert play.plane.admission.parked("own")[0] == 0
    assert min(play.queued("tiny"), play.queued("next")) > 5
    play.end()


def test_one_that_a_backend_has_by_now_stays_there() -> None:
    """A fault at another request has put off that it was told."""
    play = Pools()
    first = play.plane.admission.pools["own"].queue.oldest(1)[0]
    down(play, "b6")
    play.passes(1.0)
    assert not first.waits
    down(play, "b1", "b2", "b3", "b4", "b6")
    first.ready(Elsewhere())
    play.turns()
    assert orjson.loads(play["b1"].body)["model"] == "m"
    assert (play.backends[0].own.requests, play.backends[4].own.requests) == (1, 0)
    play.end()


def test_each_time_for_which_it_was_held_is_left_out_and_none_in_which_it_waited() -> None:
    """It is held before its own pool, and again before its fall-back's. The class gives 30 s."""
    route = {
        "name": "all",
        "match": {"model": "m"},
        "to": [{"pool": "p1"}],
        "fallbacks": [{"pool": pool, "on": ["no_backend"]} for pool in ("p2", "p3")],
    }
    pools = [{"name": f"p{n}", "backends": [_backend(f"b{n}")]} for n in (1, 2, 3)]
    held: dict[str, Any] = {"admission": {"hold_for_backend_s": 120}, "timeouts": {"hold_s": 600}}
    play = Play(3, pools=pools, routes=[route], **held)
    for backend in play.backends[1:]:
        backend.max_requests = 1
    down(play, "b1", "b2", "b3")
    clients = [play.connects() for _ in range(3)]
    for each in clients:
        each.sends(chat('"model":"m"'))
    play.passes(40.0)
    down(play, "b1", "b3")
    play.passes(5.0)
    assert play.plane.admission.pools["p2"].queue.waiting == 2
    down(play, "b1", "b2", "b3")
    play.passes(40.0)
    down(play, "b1", "b2")
    play.passes(20.0)
    assert play.plane.admission.pools["p3"].queue.waiting == 1
    play.passes(8.0)
    assert b"overloaded" in b"".join(bytes(each.written) for each in clients)
    for each in clients:
        each.closes()
    play.close()
