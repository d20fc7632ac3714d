"""When the process has too much to do: figures in, a decision out."""

import pytest

from penstock.proxy.data.overload import HINT_MAX_S, HINT_MIN_S, Overload, Running
from tests.unit.proxy.data.playbook import Play, chat

PERIOD_S = 0.25
GIB = 2**30


class Watched:
    """An overload that is looked at every period, on a clock of the test's own."""

    def __init__(self) -> None:
        self.overload = Overload()
        self.now_s = 1_000.0
        self.changes: list[str] = []

    def look(
        self,
        late_s: float = 0.0,
        memory_bytes: int = 0,
        limit_bytes: int = 0,
        worked_share: float = 1.0,
    ) -> str:
        self.now_s += PERIOD_S + late_s
        worked_s = (PERIOD_S + late_s) * worked_share
        if self.overload.observe(self.now_s, PERIOD_S, late_s, worked_s, memory_bytes, limit_bytes):
            self.changes.append(self.overload.reason)
        return self.overload.reason

    def until(self, reason: str, late_s: float = 0.0) -> float:
        """Seconds until a reason is told, at a steady lateness."""
        began_s = self.now_s
        while self.look(late_s) != reason:
            assert self.now_s - began_s < 60
        return self.now_s - began_s


def test_a_quiet_loop_is_not_overloaded() -> None:
    watched = Watched()
    for _ in range(1_000):
        watched.look(late_s=0.24)
    assert watched.changes == []


def test_late_turns_are_an_overload_only_while_they_last() -> None:
    watched = Watched()
    for late_s in (0.5, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.4):
        assert watched.look(late_s) == ""
    assert watched.until("lag", late_s=0.4) < 3.0


def test_an_overload_is_known_in_seconds_and_over_in_seconds() -> None:
    watched = Watched()
    assert watched.until("lag", late_s=0.5) < 2.5
    for _ in range(100):
        watched.look(late_s=0.5)
    assert 0.5 < watched.until("") < 3.2


def test_between_the_two_marks_nothing_changes() -> None:
    watched = Watched()
    for _ in range(100):
        assert watched.look(late_s=0.2) == ""
    watched.until("lag", late_s=0.5)
    for _ in range(100):
        assert watched.look(late_s=0.2) == "lag"
    watched.until("")
    assert watched.changes == ["lag", ""]


def test_a_process_that_was_stopped_serves_at_once() -> None:
    """Thirty seconds of standing still are no work of its own."""
    watched = Watched()
    assert watched.look(late_s=30.0, worked_share=0.001) == ""
    assert watched.overload.lag_s < 0.05


def test_who_waits_for_a_cpu_that_others_have_refuses_nobody() -> None:
    watched = Watched()
    for _ in range(1_000):
        assert watched.look(late_s=0.7, worked_share=0.05) == ""
    for _ in range(20):  # work of its own shows all the same, with half a CPU
        watched.look(late_s=0.7, worked_share=0.5)
    assert watched.overload.reason == "lag"


def test_memory_is_left_at_a_lower_mark_than_it_is_reached_at() -> None:
    watched = Watched()
    seen = [
        watched.look(memory_bytes=int(share * GIB), limit_bytes=GIB)
        for share in (0.5, 0.89, 0.91, 0.89, 0.81, 0.79, 0.89, 0.91)
    ]
    assert seen == ["", "", "memory", "memory", "memory", "", "", "memory"]


def test_a_lack_of_memory_lasts_from_its_own_beginning_to_its_end() -> None:
    watched = Watched()
    watched.until("lag", late_s=0.5)
    assert watched.overload.short_s(watched.now_s + 60) == 0.0
    for _ in range(5):
        watched.look(memory_bytes=GIB, limit_bytes=GIB)
    assert watched.overload.short_s(watched.now_s + 1.0) == pytest.approx(1.0 + 4 * PERIOD_S)
    watched.look(memory_bytes=GIB // 2, limit_bytes=GIB)
    assert watched.overload.short_s(watched.now_s) == 0.0
    watched.look(memory_bytes=GIB, limit_bytes=GIB)
    assert watched.overload.short_s(watched.now_s) == 0.0


def test_without_a_limit_memory_is_nobodys_business() -> None:
    assert Watched().look(memory_bytes=2**50) == ""


def test_memory_is_told_before_lag() -> None:
    """It also stops bodies that are being read."""
    watched = Watched()
    watched.until("lag", late_s=0.5)
    assert watched.look(0.5, GIB, GIB) == "memory"
    assert watched.look(0.5, 0, GIB) == "lag"


def test_the_hint_grows_with_the_overload_and_stays_below_a_minute() -> None:
    watched = Watched()
    overload = watched.overload
    assert overload.hint_s(watched.now_s) == HINT_MIN_S
    watched.until("lag", late_s=0.5)
    began_s = watched.now_s
    assert overload.hint_s(began_s) == HINT_MIN_S
    assert overload.hint_s(began_s + 17) == pytest.approx(17)
    assert overload.hint_s(began_s + 3_600) == HINT_MAX_S == 59.0
    assert not overload.hopeless(began_s + 58)
    assert overload.hopeless(began_s + 60)


def test_a_second_overload_is_new() -> None:
    watched = Watched()
    watched.until("lag", late_s=0.5)
    watched.now_s += 100
    watched.until("")
    assert watched.overload.lasted_s(watched.now_s) == 0.0
    watched.until("lag", late_s=0.5)
    assert watched.overload.lasted_s(watched.now_s) == 0.0


@pytest.mark.parametrize(
    ("held", "holder", "spared"),
    [
        ({}, "a", False),
        ({"a": 1_000}, "a", False),  # nobody else can be the cause
        ({"a": 1_000}, "b", True),
        ({"a": 1_000, "b": 100}, "b", True),
        ({"a": 1_000, "b": 600}, "b", False),
        ({"a": 1}, "b", False),
        ({str(number): 10 for number in range(50)}, "7", False),  # all alike
        ({str(number): 10 for number in range(50)}, "new", True),
        ({str(number): 1 for number in range(500)}, "new", False),  # many addresses
    ],
)
def test_who_is_spared(held: dict[str, int], holder: str, spared: bool) -> None:
    running = Running()
    for name, requests in held.items():
        for _ in range(requests):
            running.begin(name, 0.0)
    assert running.spares(holder) is spared
    for name, requests in held.items():
        for _ in range(requests):
            running.end(name)
    running.begin("another", 5.0)  # so that those before are not lately
    running.end("another")
    assert not running.spares(holder)


def test_requests_that_end_at_once_count_for_a_moment() -> None:
    running = Running()
    for number in range(200):
        running.begin(str(number % 20), 0.0)
    for _ in range(1_000):
        running.begin("flood", 0.5)
        running.end("flood")
    assert not running.spares("flood")
    assert running.spares("3")
    running.begin("3", 1.5)
    assert not running.spares("flood")
    running.begin("3", 4.0)
    assert running.spares("flood")


def test_requests_count_from_their_beginning_to_their_end() -> None:
    play = Play()
    for _ in range(8):
        play.plane.running.begin("192.0.2.99", play.plane.now())
    play.client.sends(chat())
    play.plane.overload.reason = "lag"
    other = play.connects()
    other.sends(chat())
    assert play.happened()[-1] == "b2 got POST"
    for _ in range(7):
        play.plane.running.end("192.0.2.99")
    play.passes(3.0)
    third = play.connects()
    third.sends(chat())
    assert "client got 429, overloaded" in " ".join(play.happened())
    for name in ("b1", "b2"):
        play.answers(name)
    play.plane.running.end("192.0.2.99")
    assert not play.plane.running._running
