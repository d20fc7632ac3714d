"""What is done at once, and whose turn is next."""

import weakref
from collections.abc import Callable

from penstock.proxy.wire.scheduler import AT_ONCE_S, FREED_BYTES, SHORT_S, UNWATCHED_S, Scheduler
from tests.unit.proxy.turns import Shared


class Rota:
    """A scheduler, and the names of those whose steps it took."""

    def __init__(self, turn_s: float = 0.0, now: Callable[[], float] = lambda: 0.0) -> None:
        self.turns = Shared()
        self.it = Scheduler(self.turns.loop, turn_s, now)
        self.log: list[str] = []

    def add(self, party: str, name: str, steps: int, spends_s: float = 0.0) -> None:
        """A body of so many steps."""

        def step() -> bool:
            nonlocal steps
            self.log.append(name)
            if spends_s:
                self.it.spend(spends_s)
            steps -= 1
            return steps > 0

        self.it.add(party, step)


def scheduler() -> tuple[Scheduler, Shared]:
    rota = Rota()
    return rota.it, rota.turns


def test_one_step_a_turn_and_then_nothing() -> None:
    rota = Rota()
    rota.add("a", "1", 2)
    rota.add("b", "2", 1)
    assert not rota.log
    for _ in range(3):
        assert rota.turns.turn()
    assert rota.log == ["1", "2", "1"]
    assert not rota.turns.turn()
    assert len(rota.it) == 0
    rota.add("a", "3", 1)
    assert rota.turns.turn()
    assert rota.log[-1] == "3"


def test_who_sends_many_delays_nobody_else() -> None:
    """32 bodies of one and a single one of another: that has every second turn."""
    rota = Rota()
    for number in range(32):
        rota.add("many", f"m{number}", 100)
    rota.add("one", "one", 10)
    for _ in range(20):
        rota.turns.turn()
    assert rota.log.count("one") == 10
    assert [name for name in rota.log if name != "one"] == [f"m{number}" for number in range(10)]
    assert len(rota.it) == 32


def test_a_step_that_raises_ends_its_own_work_alone() -> None:
    rota = Rota()

    def step() -> bool:
        raise ValueError

    rota.it.add("a", step)
    rota.add("a", "1", 1)
    rota.add("b", "2", 1)
    rota.turns.run()
    assert sorted(rota.log) == ["1", "2"]
    assert len(rota.it) == 0


def test_what_is_added_in_a_step_takes_its_turn() -> None:
    rota = Rota()

    def step() -> bool:
        rota.log.append("first")
        rota.add("a", "same", 1)
        rota.add("b", "other", 1)
        return False

    rota.it.add("a", step)
    rota.turns.run()
    assert sorted(rota.log[1:]) == ["other", "same"]


def test_small_steps_go_on_for_their_time_in_a_turn() -> None:
    now_s = iter(range(1_000))  # a second passes with each look at the clock
    rota = Rota(4.0, lambda: float(next(now_s)))
    rota.add("a", "1", 6)
    rota.add("b", "2", 2)
    assert rota.turns.turn()
    assert rota.log == ["1", "2", "1", "2"]
    assert rota.turns.turn()
    assert rota.log[4:] == ["1"] * 4
    assert not rota.turns.turn()


def test_so_much_is_done_at_once_in_a_turn_and_the_rest_waits() -> None:
    it, turns = scheduler()
    assert it.take("a", 0.6 * AT_ONCE_S)
    assert not it.take("b", 0.6 * AT_ONCE_S)
    assert it.take("b", 0.3 * AT_ONCE_S)
    assert turns.turn()
    assert it.take("b", 0.6 * AT_ONCE_S)
    assert not it.take("a", 1.1 * AT_ONCE_S)
    it.spend(AT_ONCE_S)  # it may be overdrawn
    assert it.left_s < 0.0
    assert turns.turn()
    assert it.left_s == AT_ONCE_S
    assert not turns.turn()


def test_most_turns_are_spared_a_call() -> None:
    it, turns = scheduler()
    it.spend(0.9 * (AT_ONCE_S - UNWATCHED_S))
    assert not turns.turn()
    it.spend(0.2 * (AT_ONCE_S - UNWATCHED_S))
    assert turns.turn()
    assert it.left_s == AT_ONCE_S


def test_what_is_spent_in_a_step_is_a_part_of_it() -> None:
    """As the read that follows when a paused sender goes on."""
    rota = Rota(0.001)
    for name in ("a", "b"):
        rota.add(name, name, 1_000, spends_s=0.0004)
    rota.add("c", "c", 9)
    assert rota.turns.turn()
    assert rota.log.count("a") + rota.log.count("b") == 3
    for _ in range(2):
        assert rota.turns.turn()
    assert rota.log.count("c") > 6  # its steps cost nothing


def test_while_another_party_waits_only_short_work_is_done_at_once() -> None:
    rota = Rota()
    it, turns = rota.it, rota.turns
    rota.add("waits", "1", 2)
    assert not it.take("a", 1.1 * SHORT_S)
    assert it.take("a", SHORT_S)
    assert it.take("waits", 1.1 * SHORT_S)  # it delays its own
    turns.run()
    assert it.take("a", 1.1 * SHORT_S)


class Held:
    """Some bytes."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes


def test_large_things_are_freed_one_after_the_other() -> None:
    it, turns = scheduler()
    gone: list[int] = []
    for number in range(10):
        held = Held(FREED_BYTES)
        weakref.finalize(held, gone.append, number)
        it.free("a", held)
        del held
    for count in range(1, 11):
        assert turns.turn()
        assert gone == list(range(count))
    it.free("a", b"x" * (FREED_BYTES - 1))  # small ones are not held
    assert not len(it)


class Timed:
    """Steps that take their time, by a clock of their own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turns = Shared()
        self.scheduler = Scheduler(self.turns.loop, 0.001, lambda: self.now_s)
        self.spent_s = {"dear": 0.0, "cheap": 0.0}

    def add(self, name: str, step_s: float, steps: int, party: str = "") -> None:
        def step() -> bool:
            nonlocal steps
            steps -= 1
            self.now_s += step_s
            self.spent_s[name] += step_s
            return steps > 0

        self.scheduler.add(party or name, step)


def test_whose_steps_are_dear_has_fewer() -> None:
    """A body that is just not read by slices is one step, of milliseconds."""
    it = Timed()
    for _ in range(60):
        it.add("dear", 0.006, 1)
    it.add("cheap", 0.0009, 60)
    while it.spent_s["cheap"] < 0.05:
        assert it.turns.turn()
    assert 0.03 < it.spent_s["dear"] < 0.07


def test_who_goes_and_comes_again_has_no_more_for_that() -> None:
    it = Timed()
    it.add("cheap", 0.0009, 60)
    while it.spent_s["cheap"] < 0.05:
        it.add("dear", 0.006, 1)
        before_s = it.spent_s["dear"]
        while it.spent_s["dear"] == before_s and it.spent_s["cheap"] < 0.05:
            assert it.turns.turn()
    assert 0.03 < it.spent_s["dear"] < 0.07
    it.turns.run()
    assert len(it.scheduler) == 0
    assert not it.scheduler._waiting


def test_a_step_in_which_the_process_slept_counts_as_a_long_one() -> None:
    it = Timed()
    it.add("dear", 3_600.0, 2)
    it.add("cheap", 0.0009, 10_000)
    while it.spent_s["dear"] < 7_200.0:
        assert it.turns.turn()
    assert it.spent_s["cheap"] < 1.0


def test_newcomers_without_end_come_after_who_waits() -> None:
    it = Timed()
    it.add("cheap", 0.0009, 10)
    it.spent_s["newcomer"] = 0.0
    for number in range(200):
        for each in range(2):  # as many as there is room for in a turn
            it.add("newcomer", 0.0009, 1, f"{number}.{each}")
        it.turns.turn()
    assert it.spent_s["cheap"] > 0.008
