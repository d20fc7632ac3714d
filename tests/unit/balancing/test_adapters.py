"""Which backend is asked for an adapter, and when again."""

from itertools import pairwise
from random import Random

import pytest

from penstock.balancing.adapters import (
    ALL_MAX,
    BACKEND_MAX,
    BUSY_REQUESTS,
    CLIENT_MAX,
    REST_S,
    AdapterLoads,
    NotLoaded,
    Place,
    Step,
)
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.policies import POLICIES

GO = Step()
WAIT = Step(waits=True)


class Scene:
    """A pool of backends that list their base model only, and adapters a0, a1 … of routes."""

    def __init__(self, backends: int = 3, adapters: int = 1) -> None:
        self.backends = [Backend(f"b{i}", f"http://b{i}", "p") for i in range(backends)]
        for backend in self.backends:
            backend.state = State.READY
            backend.models = {"base": b""}
        policy = POLICIES["least_tokens"](self.backends)
        fleet = Fleet((Pool("p", tuple(self.backends), policy),))
        self.loads = AdapterLoads(Gate(lambda: fleet, Random(1)), lambda: fleet)
        self.paths: dict[Place, str] = {("p", f"a{i}"): f"/a{i}" for i in range(adapters)}
        self.loads.follow(self.paths)
        self.now_s = 1_000.0

    def look(
        self, adapter: int = 0, *, client: str = "c", queued: bool = False, tried: int = -1
    ) -> Step:
        """`tried`: the number of a backend that has failed the request."""
        without = (self.backends[tried],) if tried >= 0 else ()
        return self.loads.look(ask(adapter, client), self.now_s, without, queued=queued)

    def begin(self, adapter: int = 0, *, client: str = "c") -> Backend:
        """A request comes, and makes a backend load."""
        step = self.look(adapter, client=client)
        assert step.waits
        assert step.begins is not None
        self.loads.begin(ask(adapter, client), step.begins)
        return step.begins

    def end(self, adapter: int = 0, *, loaded: bool) -> float:
        return self.loads.ended(("p", f"a{adapter}"), self.now_s, loaded=loaded)

    def fails(self, adapter: int = 0) -> tuple[Backend, float]:
        """A load begins and fails. Returns who was asked, and for how long it is not again."""
        backend = self.begin(adapter)
        return backend, self.end(adapter, loaded=False)

    def list_at(self, number: int, adapter: int = 0) -> None:
        self.backends[number].models = {"base": b"", f"a{adapter}": b""}

    def occupy(self, number: int, requests: int) -> list[Lease]:
        busy = Ask("/", "base", prompt_tokens=100, stream=True)
        return [Lease(self.backends[number], busy, self.now_s) for _ in range(requests)]


def ask(adapter: int = 0, client: str = "c") -> Ask:
    return Ask("/", f"a{adapter}", prompt_tokens=10, pool="p", client=client)


def test_the_first_request_makes_one_backend_load_and_the_others_wait_for_that() -> None:
    scene = Scene()
    scene.begin()
    assert [scene.look(client=f"c{i}") for i in range(100)] == [WAIT] * 100


def test_the_policy_says_which() -> None:
    scene = Scene()
    scene.occupy(0, 2)
    scene.occupy(2, 2)
    assert scene.begin() is scene.backends[1]


def test_who_lists_it_serves_it_and_nobody_else_is_asked() -> None:
    scene = Scene()
    scene.list_at(1)
    assert scene.look() == GO
    assert scene.look(queued=True) == GO  # for a reason of others: it is idle


def test_a_restart_loses_it_and_the_next_request_makes_it_load_again() -> None:
    scene = Scene(1)
    scene.begin()
    scene.list_at(0)
    scene.end(loaded=True)
    assert scene.look() == GO
    scene.backends[0].models = {"base": b""}
    assert scene.look() == Step(True, scene.backends[0])


def test_a_failed_request_has_it_loaded_elsewhere() -> None:
    scene = Scene(2)
    scene.list_at(0)
    assert scene.look(tried=0) == Step(True, scene.backends[1])


def test_what_nobody_can_serve_at_all_is_not_for_loads() -> None:
    scene = Scene(1)
    scene.backends[0].state = State.EJECTED
    assert scene.look() == GO


# More than one backend ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_first", "at_second", "most", "queued", "loads"),
    [
        (BUSY_REQUESTS - 1, 0, None, False, False),
        (BUSY_REQUESTS, 0, None, False, True),
        (BUSY_REQUESTS, BUSY_REQUESTS // 2, None, False, False),
        (BUSY_REQUESTS, BUSY_REQUESTS // 2 - 1, None, False, True),
        (2, 5, 2, False, True),  # it has all that it may have
        (2, 0, None, False, False),
        (2, 0, None, True, True),  # requests wait in the proxy
    ],
)
def test_one_more_loads_when_the_first_is_busy(
    at_first: int, at_second: int, most: int | None, *, queued: bool, loads: bool
) -> None:
    scene = Scene(2)
    scene.list_at(0)
    scene.backends[0].max_requests = most
    scene.occupy(0, at_first)
    scene.occupy(1, at_second)
    assert scene.look(queued=queued) == Step(begins=scene.backends[1] if loads else None)


def test_a_load_that_spreads_keeps_nobody_waiting_and_is_one_at_a_time() -> None:
    scene = Scene(3)
    scene.list_at(0)
    scene.occupy(0, BUSY_REQUESTS)
    step = scene.look()
    assert not step.waits
    assert step.begins is not None
    scene.loads.begin(ask(), step.begins)
    assert scene.look() == GO
    scene.end(loaded=False)
    assert scene.look().begins not in (None, step.begins)


# Failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backends", [1, 3])
def test_after_a_failure_each_other_backend_is_asked_once_and_then_none(backends: int) -> None:
    scene = Scene(backends)
    asked = [scene.fails() for _ in range(backends)]
    assert {backend for backend, _ in asked} == set(scene.backends)
    assert [rest_s for _, rest_s in asked] == [1.0] * backends
    with pytest.raises(NotLoaded) as refused:
        scene.look()
    assert refused.value.retry_after_s == 1.0
    scene.now_s += 1.0
    scene.begin()


def test_broken_backends_keep_an_adapter_from_nobody() -> None:
    scene = Scene(4, adapters=20)
    broken = set(scene.backends[:2])
    for adapter in range(20):
        for _ in range(3):  # the third one asked is sound at the latest
            backend = scene.begin(adapter)
            scene.end(adapter, loaded=backend not in broken)
            if backend not in broken:
                break
        assert backend not in broken


def test_what_fails_where_others_have_it_makes_nobody_wait_who_needs_it() -> None:
    scene = Scene(2)
    scene.list_at(0)
    scene.occupy(0, BUSY_REQUESTS)
    for _ in range(8):  # the other one is asked again and again, and refuses
        step = scene.look()
        assert step.begins is scene.backends[1]
        scene.loads.begin(ask(), step.begins)
        scene.now_s += scene.end(loaded=False)
    scene.backends[0].models = {"base": b""}  # it was restarted
    assert scene.begin() is scene.backends[0]


def test_an_adapter_that_fails_again_and_again_rests_for_longer_and_longer() -> None:
    scene = Scene(100)
    begins_s: list[float] = []
    rests_s: list[float] = []
    hints_s: list[float] = []
    until_s = scene.now_s + 300.0
    while scene.now_s < until_s:  # ten requests a second come for five minutes
        try:
            rests_s.append(scene.fails()[1])
            begins_s.append(scene.now_s)
        except NotLoaded as error:
            hints_s.append(error.retry_after_s)
            scene.now_s += 0.1
    assert 0.0 < min(hints_s) <= max(hints_s) <= 60.0
    assert set(rests_s) == {1.0}  # each time it is another backend
    gaps_s = [round(after - before) for before, after in pairwise(begins_s)]
    assert gaps_s == [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_success_ends_the_count_of_failures() -> None:
    scene = Scene(1)
    for _ in range(5):
        scene.fails()
        scene.now_s += 60.0
    scene.begin()
    scene.end(loaded=True)
    assert scene.fails()[1] == 1.0  # it has lost it since


def test_one_adapter_that_fails_is_nothing_to_another() -> None:
    scene = Scene(1, adapters=2)
    scene.fails(0)
    scene.begin(1)


# Limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backends", "loads", "clients", "other_waits"),
    [
        (1, BACKEND_MAX, "c{}", True),  # of one backend
        (20, CLIENT_MAX, "greedy", False),
        (1, 1, "greedy", False),  # of one backend, too
        (20, ALL_MAX, "c{}", True),
    ],
)
def test_places_for_loads_are_few_and_one_client_cannot_take_all(
    backends: int, loads: int, clients: str, *, other_waits: bool
) -> None:
    scene = Scene(backends, adapters=loads + 1)
    for number in range(loads):
        scene.begin(number, client=clients.format(number))
    assert scene.look(loads, client=clients.format(0)) == WAIT
    assert scene.look(loads, client="other").waits
    assert (scene.look(loads, client="other") == WAIT) is other_waits
    scene.end(0, loaded=False)
    assert scene.look(loads, client="other").begins is not None


def test_who_waits_waits_for_a_load_that_runs() -> None:
    """Or nobody would wake it. A random walk over all that can happen."""
    rng = Random(7)
    scene = Scene(4, adapters=24)
    running: set[int] = set()
    waits = 0
    for _ in range(5_000):
        scene.now_s += rng.random()
        number, client = rng.randrange(24), f"c{rng.randrange(6)}"
        if running and rng.random() < 0.4:
            ending = rng.choice(sorted(running))
            running.discard(ending)
            scene.end(ending, loaded=rng.random() < 0.5)
        for backend in scene.backends:
            backend.state = State.READY if rng.random() < 0.9 else State.EJECTED
        try:
            step = scene.look(number, client=client)
        except NotLoaded:
            continue
        if step.begins is not None:
            assert number not in running
            scene.loads.begin(ask(number, client), step.begins)
            running.add(number)
        assert not step.waits or running
        waits += step.waits
        assert len(running) <= ALL_MAX
    assert waits > 500


# Reloads --------------------------------------------------------------------------------------


def test_an_adapter_that_a_reload_drops_is_forgotten_when_its_load_is_over() -> None:
    scene = Scene(1)
    scene.begin()
    scene.loads.follow({})
    assert scene.loads.is_loading(("p", "a0"))
    scene.end(loaded=False)
    scene.loads.follow(scene.paths)
    scene.begin()  # it does not rest


def test_a_new_path_does_not_rest_and_an_old_one_does() -> None:
    scene = Scene(1)
    scene.fails()
    scene.loads.follow(dict(scene.paths))
    with pytest.raises(NotLoaded):
        scene.look()
    scene.loads.follow({("p", "a0"): "/elsewhere"})
    scene.begin()


def test_a_load_that_a_reload_drops_and_another_brings_back_runs_once() -> None:
    scene = Scene()
    scene.begin()
    scene.loads.follow({})
    scene.loads.follow(scene.paths)
    assert scene.look() == WAIT
    scene.end(loaded=True)


@pytest.mark.parametrize("loaded", [True, False])
def test_the_end_of_a_load_says_nothing_of_a_path_that_is_new_since(loaded: bool) -> None:
    scene = Scene(1)
    scene.fails()
    scene.now_s += 10.0
    scene.begin()
    assert scene.loads.is_wanted(("p", "a0"))
    scene.loads.follow({("p", "a0"): "/elsewhere"})
    assert scene.look() == WAIT  # one load of a name at a time
    assert not scene.loads.is_wanted(("p", "a0"))
    assert scene.end(loaded=loaded) == 0.0
    scene.begin()  # it does not rest
    assert scene.end(loaded=False) == REST_S  # as after the first failure
