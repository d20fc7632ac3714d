"""What a dry run says of a request: at once, for what it would wait, or why it is refused."""

from collections.abc import Callable, Collection
from math import inf
from random import Random
from typing import Any

import pytest

from penstock.balancing.admission.forecast import Ahead, Fate, Forecast
from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.queue import YIELD_S
from penstock.balancing.admission.refusal import SHARE, STANDING_S, STANDING_SHARE
from penstock.balancing.admission.ticket import Refused
from penstock.balancing.backend import State
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.gate import NoBackend, OwnerAway
from tests.unit.balancing.admission.lines import FILLS, Door, full

TWO: dict[str, Any] = {"shares": (0.0, 0.0), "classes": ("high", "low")}


def asked(door: Door, tokens: int, now_s: float = 0.0, **fields: Any) -> Forecast:
    ticket = door.ticket(tokens, now_s, **fields)
    ticket.dry = True
    return door.admission.forecast(ticket, now_s)


def lack(door: Door, tokens: int, now_s: float = 0.0, **fields: Any) -> Lack | None:
    found = asked(door, tokens, now_s, **fields)
    assert (found.fate is Fate.WAIT) == (found.lack is not None)
    return found.lack


# At once -----------------------------------------------------------------------------------


def test_where_there_is_room_it_is_sent_at_once() -> None:
    found = asked(Door("a"), FILLS)
    assert (found.fate, found.lack, found.ahead) == (Fate.AT_ONCE, None, [])
    assert found.backend is not None
    assert found.backend.name == "a"


def test_what_makes_no_answer_is_sent_at_once() -> None:
    assert asked(full("a"), FILLS).fate is Fate.WAIT
    assert asked(full("a"), FILLS, generates=False).fate is Fate.AT_ONCE


def test_without_admission_all_is_sent_at_once() -> None:
    door = Door("a", holds=False)
    for _ in range(5):
        door.enter(FILLS)
    assert asked(door, FILLS).fate is Fate.AT_ONCE


def test_a_place_that_costs_little_more_is_taken_at_once() -> None:
    door = Door("a", "b", prices={"a": 1.0, "b": 1.05})
    door.enter(FILLS)
    found = asked(door, FILLS)
    assert found.backend is door.backends[1]
    assert found.fate is Fate.AT_ONCE
    real = door.enter(FILLS)
    door.wake(0.0)
    assert door.leases[real].backend is door.backends[1]


# For what it waits -------------------------------------------------------------------------


def test_for_prompts_to_prefill() -> None:
    door = full("a")
    assert lack(door, 100) is Lack.PROMPTS
    door.open_up(0.1)
    assert lack(door, 100, 0.1) is None


def test_for_the_cache() -> None:
    door = Door("a", kv_tokens=10_000)
    door.first(door.enter(8_000, name="other"), 0.1)
    assert lack(door, 1_000, 0.2) is None
    assert lack(door, 4_000, 0.2) is Lack.KV_CACHE


def test_for_the_end_of_its_own_answers() -> None:
    """They could become long. Another tenant still has room."""
    door = Door("a", kv_tokens=10_000)
    while lack(door, 100, 0.2, name="mine") is None:
        door.first(door.enter(100, 0.2, name="mine"), 0.2)
    assert lack(door, 100, 0.2, name="mine") is Lack.ANSWERS
    assert lack(door, 100, 0.2, name="other") is None


def test_for_a_place_in_the_batch() -> None:
    door = Door("a")
    door.first(door.enter(10), 0.0)
    door.enter(10)  # is stuck
    door.enter(FILLS)
    door.enter(FILLS)  # waits
    door.backends[0].take(EngineReport(4.0, running=1, waiting=2, kv_usage=0.1))
    door.wake(5.0)
    door.open_up(5.1)
    door.open_up(5.1)
    assert lack(door, 10, 5.1, name="other") is Lack.SEQUENCES


GIANT: dict[str, Any] = {"choices": 300, "max_tokens": 1_000}


def with_giant() -> Door:
    """It is at a, the cheapest place, and b has a long prompt."""
    door = Door("a", "b", prices={"a": 1.0, "b": 2.0}, kv_tokens=400_000)
    door.enter(50, **GIANT)
    for index in range(150):
        next(iter(door.leases.values())).first_token(0.1, index)
    return door


def test_for_a_backend_that_is_left_to_a_giant() -> None:
    door = with_giant()
    assert asked(door, 100, 0.2).backend is door.backends[1]  # any other place is better
    while asked(door, FILLS, 0.2, name="other").fate is Fate.AT_ONCE:
        door.enter(FILLS, 0.2, name="other")
        door.wake(0.2)
    assert lack(door, 100, 0.2, name="other") is Lack.GIANT


def test_a_second_giant_waits_for_the_first() -> None:
    door = with_giant()
    door.policy.prices = {"a": 2.0, "b": 1.0}
    assert lack(door, 50, 0.2, **GIANT) is Lack.GIANTS


def test_for_a_higher_class_that_must_not_be_passed() -> None:
    door = Door("a", kv_tokens=10_000, **TWO)
    door.first(door.enter(8_000, name="other"), 0.1)
    door.enter(4_000, 0.2, name="high")
    assert lack(door, 100, 0.2 + YIELD_S / 2, rank=1, name="low") is Lack.TURN
    assert lack(door, 100, 0.2 + 2 * YIELD_S, rank=1, name="low") is Lack.CLASS
    assert lack(door, 4_000, 0.2 + 2 * YIELD_S, rank=1, name="low") is Lack.KV_CACHE


def test_for_others_that_are_next() -> None:
    door = full("a")
    door.enter(100, 0.1, name="mine")
    door.open_up(0.2)
    assert lack(door, 100, 0.2, name="mine") is Lack.TURN
    assert lack(door, 100, 0.2, name="before") is Lack.TURN  # it was given more
    assert lack(door, 100, 0.2, name="new") is None


def test_one_that_waits_tells_the_same() -> None:
    door = full("a")
    ticket = door.enter(100, 0.1)
    assert door.admission.lack(ticket, 0.1) == (door.backends[0], Lack.PROMPTS)
    door.open_up(0.2)
    assert door.admission.lack(ticket, 0.2) == (door.backends[0], Lack.TURN)
    door.backends[0].state = State.EJECTED
    assert door.admission.lack(ticket, 0.2) == (None, Lack.BACKEND)
    assert ticket.waits


def test_where_nobody_can_serve_there_is_nothing_to_wait_for() -> None:
    door = full("a")
    door.backends[0].state = State.EJECTED
    with pytest.raises(NoBackend):
        asked(door, 100)


def test_what_refers_to_a_stored_response_waits_for_the_backend_that_holds_it() -> None:
    door = full("a", "b")
    door.gate.owners.put("resp_1", "b", 0.0, "t")
    fields: dict[str, Any] = {"response_id": "resp_1", "tenant": "t"}
    found = asked(door, 100, 0.1, **fields)
    assert (found.backend, found.lack) == (door.backends[1], Lack.PROMPTS)
    door.backends[1].state = State.EJECTED
    with pytest.raises(OwnerAway):
        asked(door, 100, 0.1, **fields)
    ask = door.ticket(100, **fields).ask
    assert door.gate.explain(ask, 0.1).chosen == []


# Behind what, and until when ---------------------------------------------------------------


def test_what_goes_before_it_is_counted_by_class() -> None:
    door = full("a", **TWO)
    for name in ("x", "x", "y"):
        door.enter(1_000, 0.1, name=name)
    for name in ("mine", "mine", "other", "before"):
        door.enter(500, 0.1, rank=1, name=name)
    assert asked(door, 100, 0.1, name="new").ahead == [Ahead(0, 2, 200, 2)]  # as much of each
    found = asked(door, 2_000, 0.1, rank=1, name="mine")
    high, low = found.ahead
    assert high == Ahead(0, 3, 3_000, 2)
    assert low == Ahead(1, 3, 1_500, 2)  # not of the one that was given more
    ahead = door.queue.ahead_tokens(door.queue.flow("mine"), 1, 2_000)
    assert ahead == high.tokens + low.tokens


def test_of_a_flow_that_is_passed_midway_a_part_goes_before_it() -> None:
    door = full("a")
    for _ in range(10):
        door.enter(1_000, 0.1, name="many")
    (part,) = asked(door, 2_500, 0.1, name="new").ahead
    assert part == Ahead(0, 3, 2_500, 1)


def test_the_time_is_the_one_that_it_would_be_told() -> None:
    door = full("a")
    for number in range(5):
        found = asked(door, FILLS, 0.01, deadline_s=100.0, name="mine")
        ticket = door.enter(FILLS, 0.01, deadline_s=100.0, name="mine")
        assert found.predicted_s == ticket.predicted_s > 0.2 * number
        assert found.allowed_s == SHARE * 100.0


def test_it_is_refused_as_it_would_be() -> None:
    door = full("a")
    while asked(door, FILLS, 0.01, deadline_s=5.0).fate is Fate.WAIT:
        door.enter(FILLS, 0.01, deadline_s=5.0)
    found = asked(door, FILLS, 0.01, deadline_s=5.0)
    assert (found.fate, found.lack) == (Fate.REFUSE, Lack.PROMPTS)
    assert found.refused is not None
    with pytest.raises(Refused) as raised:
        door.enter(FILLS, 0.01, deadline_s=5.0)
    assert found.predicted_s == found.refused.predicted_s == raised.value.predicted_s
    least_s = found.refused.retry_after_s
    assert least_s <= raised.value.retry_after_s <= 2.0 * least_s
    assert sum([each.requests for each in found.ahead]) == door.admission.waiting


def test_a_queue_that_stands_allows_less_and_an_empty_one_does_not_stand() -> None:
    door = full("a", **TWO)
    assert asked(door, 100, 1_000.0, rank=1, deadline_s=10.0).allowed_s == SHARE * 10.0
    door.enter(100, 1_000.0, rank=1)
    door.enter(100, 1_001.0 + STANDING_S, rank=1)
    found = asked(door, 100, 1_001.0 + STANDING_S, rank=1, deadline_s=10.0)
    assert found.allowed_s == STANDING_SHARE * 10.0


# It tells what happens, and leaves nothing -------------------------------------------------


class Walk:
    """Random requests of some flows and classes. `ask` is called before each."""

    def __init__(self, seed: int, ask: Callable[[Door, dict[str, Any], float], None]) -> None:
        self.rng = Random(seed)
        self.door = Door("a", "b", kv_tokens=20_000, **TWO)
        self.ask = ask
        self.told: list[object] = []
        self.entered: str | float = 0.0  # a backend, the predicted time or the hint to retry
        self.now_s = 0.0

    def step(self) -> None:
        rng, door = self.rng, self.door
        self.now_s += rng.choice([0.0, 0.02, 0.3])
        fields = {
            "tokens": rng.choice([50, 1_000, 4_000, 9_000]),
            "name": rng.choice("abc"),
            "rank": rng.randrange(2),
            "deadline_s": rng.choice([0.5, 5.0, inf]),
            "choices": rng.choice([1, 1, 1, 300]),
            "max_tokens": rng.choice([None, 200]),
        }
        self.told += [ticket.name for ticket in door.wake(self.now_s)]  # as the clock does
        door.policy.prices = {"a": rng.uniform(1.0, 2.0), "b": rng.uniform(1.0, 2.0)}
        self.ask(door, fields, self.now_s)
        self.enter(fields)
        for ticket, lease in list(door.leases.items()):
            if not lease.ended and rng.random() < 0.1:
                door.finish(ticket, self.now_s, rng.randint(1, 300))
        self.told += [ticket.name for ticket in door.wake(self.now_s)]

    def enter(self, fields: dict[str, Any]) -> None:
        door = self.door
        ticket = door.ticket(since_s=self.now_s, **fields)
        try:
            door.come(ticket, self.now_s)
        except Refused as refused:
            self.entered = refused.retry_after_s
        else:
            lease = door.leases.get(ticket)
            self.entered = lease.backend.name if lease else ticket.predicted_s
        self.told.append(self.entered)


def dry_run(door: Door, fields: dict[str, Any], now_s: float) -> Forecast:
    return asked(
        door, fields["tokens"], now_s, **{k: v for k, v in fields.items() if k != "tokens"}
    )


@pytest.mark.parametrize("seed", range(3))
def test_it_foresees_what_happens(seed: int) -> None:
    foreseen: list[tuple[Forecast, int]] = []

    def ask(door: Door, fields: dict[str, Any], now_s: float) -> None:
        foreseen.append((dry_run(door, fields, now_s), door.admission.waiting))

    fates = set()
    walk = Walk(seed, ask)
    for _ in range(150):
        walk.step()
        (found, waiting), told = foreseen[-1], walk.entered
        fates.add(found.fate)
        if isinstance(told, str):
            assert (found.fate, found.backend and found.backend.name) == (Fate.AT_ONCE, told)
        elif found.fate is Fate.AT_ONCE:  # on a detour, in the wake of the same turn
            assert not waiting
        elif found.fate is Fate.WAIT:
            assert told == pytest.approx(found.predicted_s, rel=0.05)
        else:
            assert found.refused is not None
            assert isinstance(told, float)
            least_s = found.refused.retry_after_s
            assert 0.95 * least_s <= told <= 1.05 * 2.0 * least_s
    assert fates == set(Fate)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_that_follows_is_changed_by_it(seed: int) -> None:
    def ask(door: Door, fields: dict[str, Any], now_s: float) -> None:
        for name in ("a", "b", "c", "nobody", ""):
            for rank in range(2):
                dry_run(door, fields | {"name": name, "rank": rank}, now_s)
        for lines in door.admission.lines.values():
            for ticket in lines.queue.oldest(20):
                door.admission.lack(ticket, now_s)

    def nothing(door: Door, fields: dict[str, Any], now_s: float) -> None:
        """The other one is not asked."""

    with_it, without = Walk(seed, ask), Walk(seed, nothing)
    for _ in range(150):
        with_it.step()
        without.step()
    assert with_it.told == without.told
    assert set(with_it.door.queue.flows) == {"a", "b", "c"}


def state(thing: object, seen: set[int]) -> object:
    """All that an object of ours holds, without what is only kept to find it faster."""
    if isinstance(thing, (str, int, float, bytes, type(None))) or callable(thing):
        return thing
    if isinstance(thing, Random):
        return thing.getstate()
    if id(thing) in seen:
        return type(thing).__name__
    seen.add(id(thing))
    if isinstance(thing, dict):
        return [(state(key, seen), state(value, seen)) for key, value in thing.items()]
    if isinstance(thing, Collection):
        return [state(each, seen) for each in thing]
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    names += getattr(thing, "__dict__", {})
    kept = {"_at", "_spare"}  # for one moment
    return [
        (name, state(getattr(thing, name), seen))
        for name in names
        if name not in kept and hasattr(thing, name)
    ]


@pytest.mark.once  # what is compiled has no slots to look at
def test_the_state_is_the_same_before_and_after() -> None:
    def ask(door: Door, fields: dict[str, Any], now_s: float) -> None:
        for backend in door.backends:
            backend.advance(now_s)
        before = state(door.admission, set())
        dry_run(door, fields | {"name": "nobody"}, now_s)
        dry_run(door, fields, now_s)
        for line in door.admission.lines.values():
            for ticket in line.queue.oldest(5):
                door.admission.lack(ticket, now_s)
        assert state(door.admission, set()) == before

    walk = Walk(7, ask)
    ask(walk.door, {"tokens": FILLS}, 0.0)  # also where there is no line yet
    for _ in range(100):
        walk.step()
    assert walk.door.admission.waiting


@pytest.mark.once
@pytest.mark.parametrize(("tokens", "wanted"), [(4_000, Lack.KV_CACHE), (100, Lack.ANSWERS)])
def test_no_shortage_is_noted_for_it(tokens: int, wanted: Lack) -> None:
    door = Door("a", kv_tokens=10_000)
    if wanted is Lack.KV_CACHE:
        door.first(door.enter(8_000, name="mine"), 0.1)
    while wanted is Lack.ANSWERS and lack(door, 100, 0.2, name="mine") is None:
        door.finish(door.enter(100, 0.2, name="mine"), 0.2, 9)
        door.first(door.enter(100, 0.2, name="mine"), 0.2)
    door.backends[0].advance(1.0)
    before = state(door.admission, set())
    assert lack(door, tokens, 1.0, name="mine") is wanted
    assert state(door.admission, set()) == before


def test_its_ticket_is_told_nothing() -> None:
    door = full("a")
    ticket = door.ticket(100)
    ticket.dry = True
    door.admission.forecast(ticket, 0.1)
    door.open_up(0.2)
    assert door.wake(0.2) == []
    assert door.told == []
    assert not ticket.waits
