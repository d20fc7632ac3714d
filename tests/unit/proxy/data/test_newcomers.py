"""Transcripts of new backends: what counts for them, who is taken out, and what nobody pays."""

from collections.abc import Callable
from random import Random
from typing import Any

from penstock.balancing.backend import Backend, State
from penstock.proxy.data.newcomers import JUDGED_MAX
from tests.unit.proxy.data.playbook import Play, chat, keyed, plain, tenants

ATTACKER = 0
# Whether a tenant's request fails at a backend.
Fails = Callable[[str, int], bool]


class Pool(Play):
    """Three backends or more, and five tenants. `taken_out` are those that were worse."""

    def __init__(self, backends: int = 3, *, spares: bool = True, **settings: Any) -> None:
        super().__init__(backends, tenants=tenants(*"01234"), **settings)
        self.rng = Random(1)
        self.spares = spares
        self.failure = "502 Bad Gateway"
        self.failed = 0
        self.taken_out: list[tuple[str, str]] = []
        self.plane.newcomers.take_out = self._take_out

    def _take_out(self, backend: Backend, why: str) -> bool:
        if self.spares:
            backend.state, backend.reason = State.EJECTED, "worse"
            self.taken_out.append((backend.name, why))
        return self.spares

    def arrives(self, number: int = -1) -> Backend:
        self.plane.newcomers.arrived(self.backends[number])
        return self.backends[number]

    def one(self, fails: Fails, tenant: int | None = None) -> None:
        """One request of a tenant, until it is answered."""
        tenant = self.rng.randrange(1, 5) if tenant is None else tenant
        client = self.client if not self.client.closed else self.connects()
        self.client = client
        client.written = b""
        client.sends(chat(head=keyed(str(tenant))))
        while client.connection._exchange is not None:
            backend = client.connection._exchange.request.record.backend
            if fails(backend, tenant):
                self[backend].sends(plain(self.failure))
                self.failed += 1
            else:
                self.answers(backend, "a")
            self.turns()
        assert client.written

    def goes_on(self, requests: int, fails: Fails, attacks: int = 0) -> None:
        """Requests of all tenants, five in a second, and so many of the attacker's beside each."""
        for _ in range(requests):
            self.one(fails)
            for _ in range(attacks):
                self.one(fails, ATTACKER)
            self.loop.now_s += 0.2
            self.plane.measure(self.loop.now_s)

    def told(self, number: int = -1) -> dict[str, object]:
        return self.plane.newcomers.told(self.backends[number]) or {}

    @property
    def out(self) -> list[str]:
        return [name for name, _ in self.taken_out]

    def outcomes(self) -> dict[tuple[str, ...], int]:
        return dict(self.metrics.newcomers.items())


def judged() -> Pool:
    play = Pool()
    play.arrives()
    return play


def no(backend: str, tenant: int) -> bool:
    return False


def some(rng: Random, name: str = "b3", share: float = 0.3) -> Fails:
    return lambda backend, tenant: backend == name and rng.random() < share


def test_one_that_fails_more_than_its_peers_is_taken_out() -> None:
    play = judged()
    play.goes_on(200, some(play.rng))
    ((name, why),) = play.taken_out
    assert name == "b3"
    assert why.startswith("errors ")
    told = play.told()
    assert (told["stage"], told["why"]) == ("worse", why)
    assert play.outcomes() == {("p", "worse"): 1}
    assert not play.plane.newcomers  # nothing is judged any more


def test_one_that_has_enough_to_do_is_not_worse() -> None:
    play = judged()
    play.failure = "503 Service Unavailable"
    play.goes_on(200, some(play.rng))
    assert play.failed >= 15
    assert not play.taken_out
    told = play.told()
    requests = told["requests"]
    for _ in range(3):
        play.one(lambda backend, tenant: backend == "b3")
    assert play.told()["requests"] == requests


def test_one_that_is_like_its_peers_stays_and_is_known() -> None:
    play = judged()
    play.goes_on(30, no)
    assert play.told() == {"stage": "judged", "requests": 10, "why": ""}
    play.goes_on(2_500, no)
    assert not play.taken_out
    assert play.told() == {}
    assert play.outcomes() == {("p", "no_worse"): 1}


def test_a_pool_that_fails_as_a_whole_blames_no_newcomer() -> None:
    play = judged()
    rng = play.rng
    play.goes_on(400, lambda backend, tenant: rng.random() < 0.3)
    assert not play.taken_out


def test_requests_that_fail_everywhere_do_not_count_where_they_are_tried_again() -> None:
    """They come to every backend, and so to the new one more often than others do."""
    play = judged()
    rng, poisoned = play.rng, [False]

    def fails(backend: str, tenant: int) -> bool:
        return poisoned[0]

    for _ in range(400):
        poisoned[0] = rng.random() < 0.1
        play.goes_on(1, fails)
    new = play.plane.newcomers._pools["p"].judged["b3"]
    assert 100 < new.requests < 170  # a third of 400, and no retries
    assert not play.taken_out


def test_what_others_failed_before_is_not_its_own_request() -> None:
    play = judged()
    play.goes_on(30, lambda backend, tenant: backend == "b2")  # b3 is next, and answers
    assert play.told() == {"stage": "judged", "requests": 0, "why": ""}


def test_requests_of_the_engine_before_say_nothing_of_the_new_one() -> None:
    play = Pool()
    play.client.sends(chat(head=keyed("1")))
    exchange = play.client.exchange
    name = exchange.request.record.backend
    number = [each.name for each in play.backends].index(name)
    play.loop.now_s += 1.0
    play.arrives(number)
    play.answers(name)
    assert play.told(number) == {"stage": "judged", "requests": 0, "why": ""}
    play.goes_on(3, no)
    assert play.told(number) == {"stage": "judged", "requests": 1, "why": ""}


def test_one_that_the_pool_cannot_spare_is_told_of_and_taken_out_later() -> None:
    play = Pool(spares=False)
    play.arrives()
    play.goes_on(200, some(play.rng))
    told = play.told()
    assert told["stage"] == "judged"
    assert str(told["why"]).startswith("errors ")
    play.spares = True
    play.plane.measure(play.loop.now_s)
    assert play.out == ["b3"]


def test_a_few_are_judged_at_once_and_others_wait_and_are_nobodys_peers() -> None:
    play = Pool(JUDGED_MAX + 3)
    for number in range(2, JUDGED_MAX + 3):
        play.arrives(number)
    play.goes_on(50, no)
    stages = [play.told(number).get("stage") for number in range(JUDGED_MAX + 3)]
    assert stages.count("judged") == JUDGED_MAX
    assert stages.count("waits") == 1
    waits = stages.index("waits")
    assert play.told(waits) == {"stage": "waits", "requests": 0, "why": ""}
    name, one = next(iter(play.plane.newcomers._pools["p"].judged.items()))
    assert one._judge.stable.number < 20  # two peers of seven
    play.goes_on(500, some(play.rng, name))
    assert play.out == [name]
    assert play.told(waits)["stage"] == "judged"


def test_those_that_never_serve_hold_no_place() -> None:
    play = Pool(JUDGED_MAX + 3)
    for number in range(2, JUDGED_MAX + 2):
        play.arrives(number).state = State.STARTING
    play.arrives()
    play.goes_on(200, some(play.rng, "b7"))
    assert play.out == ["b7"]
    assert play.told(2) == {"stage": "judged", "requests": 0, "why": ""}


def test_those_that_are_worse_and_cannot_be_spared_hold_no_place() -> None:
    play = Pool(JUDGED_MAX + 3, spares=False)
    for number in range(2, JUDGED_MAX + 3):
        play.arrives(number)
    rng = play.rng
    play.goes_on(800, lambda backend, tenant: backend not in ("b1", "b2") and rng.random() < 0.5)
    whys = [str(play.told(number)["why"]) for number in range(2, JUDGED_MAX + 3)]
    assert all(why.startswith("errors ") for why in whys)
    play.spares = True
    play.plane.measure(play.loop.now_s)
    assert len(play.taken_out) == JUDGED_MAX + 1
    assert play.outcomes() == {("p", "worse"): JUDGED_MAX + 1}
    assert not play.plane.newcomers


def reloads(play: Pool, **newcomers: Any) -> None:
    """With these settings of new backends."""
    settings = play.plane.settings
    changed = settings.health.newcomers.model_copy(update=newcomers)
    health = settings.health.model_copy(update={"newcomers": changed})
    play.reloads(health=health)


def test_a_reload_that_lets_one_client_decide_counts_for_who_is_judged_now() -> None:
    play = judged()
    rng = play.rng

    def of_one(requests: int) -> None:
        for _ in range(requests):
            play.one(some(rng, share=0.5), ATTACKER)
            play.loop.now_s += 0.2
            play.plane.measure(play.loop.now_s)

    of_one(200)
    assert not play.taken_out
    reloads(play, clients_min=1)
    assert play.told() == {"stage": "judged", "requests": 0, "why": ""}
    of_one(200)
    assert play.out == ["b3"]


def test_a_reload_that_changes_nothing_of_that_lets_a_judgement_go_on() -> None:
    play = judged()
    play.goes_on(30, no)
    reloads(play)
    assert play.told() == {"stage": "judged", "requests": 10, "why": ""}


def test_settings_and_reloads_end_a_judgement() -> None:
    play = judged()
    reloads(play, judge=False)
    assert not play.plane.newcomers
    play.arrives()
    assert not play.plane.newcomers
