"""How many streams an engine runs at once: learnt from stuck prompts and its own report."""

from math import inf
from typing import Any

import pytest

from penstock.balancing.admission.slots import KV_USAGE_MAX, PROBE_S, STUCK_S, Slots
from penstock.balancing.engine_report import EngineReport
from tests.unit.balancing.admission.lines import FILLS, Door


def report(at_s: float, running: int = 64, waiting: int = 3, kv_usage: float = 0.4) -> EngineReport:
    return EngineReport(at_s, running=running, waiting=waiting, kv_usage=kv_usage)


def learnt(*reports: EngineReport, stuck_s: float = 0.0) -> Slots:
    slots = Slots()
    for each in reports:
        slots.look(each, stuck_s, each.at_s)
    return slots


def test_both_must_agree() -> None:
    assert learnt(report(1.0)).most == 65
    assert learnt(report(1.0), stuck_s=inf).most == inf
    assert learnt(report(1.0, waiting=0)).most == inf


def test_who_waits_for_the_cache_says_nothing_of_slots() -> None:
    assert learnt(report(1.0, kv_usage=KV_USAGE_MAX)).most == inf


def test_those_that_the_engine_has_put_off_say_nothing_of_slots() -> None:
    deferred = EngineReport(1.0, running=64, waiting=3, deferred=3, kv_usage=0.4)
    assert learnt(deferred).most == inf


def test_no_more_are_tried_at_once_while_one_waits_in_the_engine() -> None:
    slots = learnt(report(1.0))
    slots.look(report(2.0, running=65, waiting=1), inf, 2.0)
    assert slots.most == 65


def test_a_report_from_before_a_prompt_was_stuck_says_nothing() -> None:
    assert learnt(report(1.0), stuck_s=1.5).most == inf


def test_one_low_report_lowers_it_by_one() -> None:
    assert learnt(report(1.0), report(2.0, running=10)).most == 64
    assert learnt(report(1.0, running=10), report(2.0)).most == 65


def test_more_are_tried_after_a_while_until_one_is_stuck() -> None:
    slots = learnt(report(1.0))
    tried = []
    for number in range(1, 4):
        slots.look(None, inf, 1.0 + number * (PROBE_S + 1.0))
        tried.append(slots.most)
    assert tried == [66, 68, 72]
    now_s = 1.0 + 3 * (PROBE_S + 1.0) + 1.0
    slots.look(report(now_s, running=70), now_s - 1.0, now_s)
    assert slots.most == 71
    slots.look(None, inf, now_s + PROBE_S + 1.0)
    assert slots.most == 72


def streams(door: Door, count: int) -> None:
    for _ in range(count):
        door.first(door.enter(10, 0.0, name="streams"), 0.0)


@pytest.mark.parametrize("stuck", [True, False])
def test_an_engine_with_all_slots_taken_gets_one_more_and_no_other(stuck: bool) -> None:
    """The engine runs eight. A ninth waits there, and is stuck; or a prompt's image does not come,
    and the engine has nothing that waits."""
    door = Door("a")
    streams(door, 8)
    door.enter(2_500, 0.0, name="ninth")  # fills the window
    waits = door.enter(10, 0.0, name="other")
    assert waits.waits
    at_s = 4 * STUCK_S
    told = EngineReport(at_s, running=8, waiting=int(stuck), known_requests=9)
    door.backends[0].take(told)
    door.wake(at_s + 0.1)
    ninth = next(each for each in door.leases if each.name == "ninth")
    door.first(ninth, at_s + 0.2)
    assert door.wake(at_s + 0.2) == ([] if stuck else [waits])
    if stuck:
        first = next(each for each in door.leases if each.name == "streams")
        door.finish(first, at_s + 0.3)
        assert door.wake(at_s + 0.3) == [waits]


def test_each_choice_takes_a_slot() -> None:
    door = Door("a")
    room = door.admission.lines
    ticket = door.enter(10, 0.0, choices=5, prompts=2)
    assert room["p"].places.rooms[door.backends[0]].sequences == 10
    door.finish(ticket, 1.0)
    assert room["p"].places.rooms[door.backends[0]].sequences == 0


def test_what_runs_while_nothing_waits_shows_that_there_are_more() -> None:
    """Twice as many more each time: what was learnt by mistake is soon forgotten."""
    slots = learnt(report(1.0, running=3))
    tried = [slots.most]
    for number in range(4):
        at_s = 2.0 + number
        slots.look(report(at_s, running=int(slots.most), waiting=0), inf, at_s)
        tried.append(slots.most)
    assert tried == [4, 5, 7, 11, 19]
    slots.look(report(9.0, running=17, waiting=0), inf, 9.0)
    assert slots.most == 19


def test_no_more_are_tried_where_not_all_are_used() -> None:
    slots = learnt(report(1.0))
    for number in range(10):
        now_s = 1.0 + number * (PROBE_S + 1.0)
        slots.look(report(now_s, waiting=0, running=1_000), inf, now_s, sent=60)
    assert slots.most == 65
    slots.look(None, inf, 400.0, sent=61)  # the last four are kept for other flows
    assert slots.most == 66


def test_no_more_are_tried_while_several_wait_in_the_engine() -> None:
    """A request with many choices waits there for all of them. That taught 320 of 64."""
    slots = learnt(report(1.0))
    for number in range(1, 9):
        now_s = 1.0 + number * (PROBE_S + 1.0)
        slots.look(report(now_s, waiting=4, kv_usage=1.0), inf, now_s, sent=68)
        assert slots.most == 65
    slots.look(report(300.0, waiting=1, kv_usage=1.0), inf, 300.0, sent=68)
    assert slots.most == 66
    slots.look(None, inf, 300.0 + PROBE_S + 1.0, sent=68)
    assert slots.most == 68


@pytest.mark.parametrize("flows", [1, 2, 5])
def test_more_are_tried_however_many_flows_there_are(flows: int) -> None:
    """The last places are kept from each, so they never had all of them."""
    door = Door("a")
    running = [door.enter(10, 0.0, name=f"{number % flows}") for number in range(8)]
    for each in running:
        door.first(each, 0.0)
    door.enter(2_500, 0.0, name="0")
    at_s = 4 * STUCK_S
    door.backends[0].take(EngineReport(at_s, running=8, waiting=1, known_requests=9))
    waits = [door.enter(10, at_s, name=f"{number % flows}") for number in range(40)]
    for number in range(120):
        now_s = at_s + number
        for each in list(door.leases):
            if door.leases[each].first_token_s is None:
                door.first(each, now_s)
        door.wake(now_s)
    assert sum(each in door.leases for each in waits) > 10


def test_prompts_that_the_engine_does_not_find_in_its_cache_are_not_stuck() -> None:
    """It is expected to hold them, and computes each for two seconds."""
    door = Door("a", kv_tokens=400_000)
    text: dict[str, Any] = {"blocks": tuple(range(175)), "block_tokens": 160.0, "max_tokens": 10}
    door.finish(door.enter(28_000, 0.0, name="t", **text), 2.0)
    for _ in range(5):
        assert door.enter(28_000, 3.0, name="t", **text) in door.leases
    assert door.backends[0].queued_work * door.backends[0].prefill_speed.work_s < 0.5
    door.enter(FILLS, 3.0, name="other")
    assert door.enter(100, 3.0, name="other").waits
    door.backends[0].take(EngineReport(8.0, running=1, waiting=4, kv_usage=0.2, kv_tokens=400_000))
    door.wake(8.1)
    assert slots_of(door).most == inf
    door.backends[0].take(EngineReport(60.0, running=1, waiting=4, kv_usage=0.2, kv_tokens=400_000))
    door.wake(60.1)
    assert slots_of(door).most == 2


def slots_of(door: Door) -> Slots:
    return door.admission.lines["p"].places.rooms[door.backends[0]]._slots


def test_a_prompt_is_not_stuck_behind_those_that_the_engine_computed_meanwhile() -> None:
    """They came before it, and have their first tokens. It has waited for them as well."""
    door = Door("a", kv_tokens=400_000)
    text: dict[str, Any] = {"blocks": tuple(range(175)), "block_tokens": 160.0, "max_tokens": 10}
    door.finish(door.enter(28_000, 0.0, name="t", **text), 2.0)
    before = [door.enter(28_000, 10.0, name="t", **text) for _ in range(3)]
    last = door.enter(FILLS, 10.0, name="other")
    assert last in door.leases
    assert door.enter(100, 10.0, name="other").waits
    for number, each in enumerate(before):
        door.first(each, 12.0 + 2.0 * number)
    told = EngineReport(16.2, running=3, waiting=2, kv_usage=0.2, kv_tokens=400_000)
    door.backends[0].take(told)
    door.wake(16.3)
    assert slots_of(door).most == inf
