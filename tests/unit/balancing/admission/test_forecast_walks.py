"""A dry run foretells what happens, and leaves nothing behind."""

from collections.abc import Callable, Collection
from math import inf
from random import Random
from typing import Any

import pytest

from penstock.balancing.admission.forecast import Fate, Forecast
from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.ticket import Refused
from tests.unit.balancing.admission.lines import FILLS, Door, asked, full, lack

TWO: dict[str, Any] = {"shares": (0.0, 0.0), "classes": ("high", "low")}


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
    kept = {"_able", "_at", "_found", "_found_s", "_spare"}  # for one moment
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
