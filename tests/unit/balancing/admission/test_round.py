"""One wake does not look at the lines of all pools."""

from penstock.balancing.admission.admission import Rules
from penstock.balancing.admission.round import LOOKS_MAX, Round
from penstock.balancing.backend import State
from penstock.balancing.fleet import Fleet, Pool
from tests.unit.balancing.admission.lines import Door, Priced, ready

POOLS = "pqrst"


class Play:
    """A round, and how often it has asked for a wake."""

    def __init__(self) -> None:
        self.asked = 0
        self.round = Round(self._ask)

    def _ask(self) -> None:
        self.asked += 1

    def wake(self, looks: int, names: str = "abc", change: str = "") -> str:
        """The lines of one wake that looks at so many requests in each. "+": another must follow.

        `change`: when this line is looked at, something changes.
        """
        before, told = self.asked, ""
        self.round.begin(names)
        while (name := self.round.next()) is not None:
            told += name
            if name == change:
                self.round.changed()
                before += 1
            for _ in range(looks):
                self.round.looked()
        self.round.end()
        return told + "+" * (self.asked - before)


def test_a_wake_that_looks_at_few_goes_through_all() -> None:
    play = Play()
    assert [play.wake(1), play.wake(1, change="b"), play.wake(1)] == ["abc"] * 3


def test_what_is_left_comes_in_the_next_ones() -> None:
    play = Play()
    assert [play.wake(LOOKS_MAX) for _ in range(4)] == ["a+", "b+", "c", "a+"]


def test_after_a_change_in_the_middle_all_are_looked_at_once_more() -> None:
    """It may have been where the first ones had looked before."""
    play = Play()
    wakes = [play.wake(LOOKS_MAX, change="b") for _ in range(3)]
    assert wakes == ["a+", "b+", "c+"]
    assert [play.wake(0), play.wake(0)] == ["abc", "abc"]


def test_a_round_knows_nothing_of_the_one_before() -> None:
    play = Play()
    for _ in range(2):
        assert [play.wake(LOOKS_MAX, change=name) for name in "abc"] == ["a+", "b+", "c+"]
        assert [play.wake(LOOKS_MAX) for _ in range(3)] == ["a+", "b+", "c"]
    assert [play.wake(LOOKS_MAX) for _ in range(3)] == ["a+", "b+", "c"]
    assert play.wake(1, change="b") == "abc"


def test_a_wake_that_has_looked_enough_at_its_last_line_is_the_last_one() -> None:
    """What changes meanwhile has asked for another one itself."""
    assert Play().wake(LOOKS_MAX, "a", change="a") == "a"


def test_a_line_that_is_new_in_the_middle_comes_in_the_next_round() -> None:
    play = Play()
    assert play.wake(LOOKS_MAX, "ab") == "a+"
    assert [play.wake(0, "abc") for _ in range(2)] == ["b", "abc"]


def test_looks_that_find_nothing_end() -> None:
    """Lists to embed wait in many pools, and each wake looks at some of each. Nothing changes."""
    door = Door("a")
    door.backends = tuple(ready(f"{number}") for number in range(20))
    door.fleet = Fleet(tuple(Pool(each.name, (each,), Priced()) for each in door.backends))
    for backend in door.backends:
        for number in range(40):
            name = f"{number % 8}"
            door.enter(8_000, 0.0, pool=backend.name, name=name, generates=False, stream=False)
    door.wake(0.0)
    assert door.admission.waiting > 20 * 8
    wakes, changes = 0, -1
    while door.changes != changes and wakes < 100:
        changes = door.changes
        assert door.wake(0.01) == []
        wakes += 1
    assert 2 <= wakes <= 10


def held_before_all() -> Door:
    """A hundred requests are held before each of the pools."""
    door = Door("a", hold_for_backend_s=60.0)
    door.backends = tuple(ready(name) for name in POOLS)
    door.fleet = Fleet(tuple(Pool(each.name, (each,), Priced()) for each in door.backends))
    for backend in door.backends:
        backend.state = State.STARTING
        for _ in range(100):
            door.come(door.ticket(10, pool=backend.name), 0.0)
    assert door.admission.waiting == 100 * len(POOLS)
    return door


def test_when_nothing_is_held_any_more_no_wake_tells_the_requests_of_all() -> None:
    door = held_before_all()
    door.admission.follow(Rules(enabled=True))
    wakes = 0
    while door.admission.waiting:
        before = len(door.told)
        door.wake(0.01)
        assert len(door.told) - before < 2 * LOOKS_MAX
        wakes += 1
    assert wakes <= 2 * len(POOLS)


def test_a_pool_that_a_reload_has_removed_in_the_middle_is_passed_over() -> None:
    door = held_before_all()
    for backend in door.backends:
        backend.state = State.READY
    for ticket in door.admission.lines["t"].queue.oldest(200):
        door.admission.leave(ticket, 0.0)
    door.wake(0.1)
    door.fleet = Fleet(door.fleet.pools[:-1])
    door.admission.follow(Rules(enabled=True, hold_for_backend_s=60.0))
    assert "t" not in door.admission.lines
    for _ in range(2 * len(POOLS)):
        door.wake(0.1)
    assert door.admission.waiting == 0


def test_when_all_pools_come_back_at_once_no_wake_sends_the_requests_of_all() -> None:
    door = held_before_all()
    for backend in door.backends:
        backend.state = State.READY
    wakes, changes = 0, -1
    while door.changes != changes:  # as long as one asks for another, and at the same moment
        changes = door.changes
        assert len(door.wake(0.1)) < 2 * LOOKS_MAX
        wakes += 1
    assert door.admission.waiting == 0
    assert len(POOLS) <= wakes <= 3 * len(POOLS)
