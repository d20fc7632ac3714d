"""Whether a backend has room: its window of prompts, and the number of streams that it runs."""

from typing import Any

import pytest

from penstock.balancing.admission.capacity import WINDOW_S, WINDOW_WORK_MIN
from penstock.balancing.admission.queued_request import QueuedRequest, WaitReason
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.outliers.failures import leave_alone
from tests.unit.balancing.admission.door import FILLS, Door, full


def reason(door: Door, now_s: float, tokens: int = 10, **fields: Any) -> WaitReason | None:
    """What a new request would wait for."""
    return door.forecast(tokens, now_s, **fields).reason


# The window --------------------------------------------------------------------------------


def test_an_engine_gets_prompts_up_to_its_window_and_one_however_long_it_is() -> None:
    door = Door("a")
    sent = sum(door.is_sent(door.enter(500)) for _ in range(20))
    assert WINDOW_WORK_MIN / 500 <= sent <= WINDOW_WORK_MIN / 500 + 2
    assert reason(door, 0.0) is WaitReason.PROMPTS
    door = Door("a")
    assert door.is_sent(door.enter(500_000))
    assert door.enter(1).waits


def taught_speed(tokens_per_s: float, round_trip_s: float = 0.0) -> Door:
    """A backend whose prefill is known, with a round trip."""
    door = Door("a")
    now_s = 0.0
    for _ in range(60):
        request = door.enter(20_000, now_s)
        now_s += 20_000 / tokens_per_s
        door.finish(request, now_s, 2)
    door.backends[0].round_trip_s = round_trip_s
    return door


def sent_beforehand(door: Door) -> int:
    """How many tokens are sent before the first prompt has its first token."""
    sent = 0
    while True:
        request = door.enter(1_000, 1_000.0)
        if not door.is_sent(request):
            return sent
        sent += 1_000


def test_a_quick_engine_gets_more_prompts_beforehand() -> None:
    slow, quick = taught_speed(10_000.0), taught_speed(100_000.0)
    assert sent_beforehand(slow) <= 3_000
    assert sent_beforehand(quick) == pytest.approx(100_000 * WINDOW_S, rel=0.6)


def test_the_time_that_a_request_is_under_way_counts_on_top_of_the_window() -> None:
    near, far = taught_speed(100_000.0), taught_speed(100_000.0, round_trip_s=0.2)
    more = sent_beforehand(far) - sent_beforehand(near)
    assert more == pytest.approx(0.2 * 100_000, rel=0.6)


def test_beside_many_slow_streams_an_engine_gets_more_prompts() -> None:
    """A step takes long then, and prompts in it cost little."""
    door = taught_speed(30_000.0)
    before = sent_beforehand(door)
    door = taught_speed(30_000.0)
    for _ in range(60):
        request = door.enter(3_000, 1_000.0)
        door.first(request, 1_000.0)
    assert door.pool.capacities[door.backends[0]].step_s > WINDOW_S / 4
    assert sent_beforehand(door) > before


def test_embeddings_fill_the_window_and_wait_for_it() -> None:
    door = Door("a")
    flood = [door.enter(900, name="flood", generates=False) for _ in range(40)]
    begun = [request for request in flood if door.is_sent(request)]
    assert len(begun) == 3
    victim = door.enter(20, 0.01, name="victim", generates=False)
    assert victim.waits
    for request in begun[:2]:
        door.finish(request, 0.06)
    assert victim in door.wake(0.06)[:2]


# The number of streams ---------------------------------------------------------------------


class Engine:
    """It runs eight streams at once, a token in 10 ms for each, and reports once a second."""

    PLACES = 8

    def __init__(self) -> None:
        self.door = Door("a")
        self.door.backends[0].report = None
        self.now_s = 0.0
        self.tokens = 0
        self.running: list[QueuedRequest] = []
        self.waiting: list[QueuedRequest] = []

    def come(self, name: str = "", tokens: int = 10, **fields: Any) -> QueuedRequest:
        request = self.door.enter(tokens, self.now_s, name=name, **fields)
        self._take([request] if self.door.is_sent(request) else [])
        return request

    def _take(self, requests: list[QueuedRequest]) -> None:
        self.waiting += requests
        while self.waiting and len(self.running) < self.PLACES:
            request = self.waiting.pop(0)
            self.running.append(request)
            self.door.first(request, self.now_s)

    def end(self, request: QueuedRequest) -> None:
        self.running.remove(request)
        self.door.finish(request, self.now_s, 1_000)
        self._take([])
        self.wake()

    def wake(self) -> None:
        self._take(self.door.wake(self.now_s))

    def passes(self, seconds: int, **report: Any) -> None:
        """Streams go on, and the engine reports."""
        for _ in range(seconds):
            self.now_s += 1.0
            for request in self.running:
                self.door.leases[request].tokens(100)
            self.tokens += 100 * len(self.running)
            numbers = {
                "running": len(self.running),
                "waiting": len(self.waiting),
                "kv_usage": 0.4,
                "generated_tokens": self.tokens,
            } | report
            self.door.backends[0].take(EngineReport(self.now_s, **numbers))
            self.wake()
            self.door.forecast(10, self.now_s)  # somebody asks


def busy_engine(beyond: int = 3, **report: Any) -> Engine:
    """All places are taken, and so many prompts wait in the engine."""
    engine = Engine()
    for number in range(Engine.PLACES + beyond):
        engine.come(f"{number % 3}", max_tokens=100_000)
    engine.passes(5, **report)
    return engine


def test_prompts_that_are_stuck_in_an_engine_teach_how_many_streams_it_runs() -> None:
    engine = busy_engine()
    assert all(engine.come().waits for _ in range(3))
    assert reason(engine.door, engine.now_s) is WaitReason.SEQUENCES
    for request in engine.running[:3]:
        engine.end(request)  # those that were stuck have their first tokens
    engine.passes(1)
    assert reason(engine.door, engine.now_s) is WaitReason.SEQUENCES
    engine.end(engine.running[0])
    engine.end(engine.running[0])
    assert len(engine.running) == Engine.PLACES


def test_one_waits_in_the_engine_so_that_no_place_is_empty() -> None:
    engine = busy_engine()
    waits = [engine.come(f"{number}") for number in range(10)]
    for _ in range(3):
        engine.end(engine.running[0])
    engine.passes(2)
    assert len(engine.waiting) <= 1
    for _ in range(5):
        engine.end(engine.running[0])
        engine.passes(1)
        assert len(engine.running) == Engine.PLACES
    assert any(engine.door.is_sent(request) for request in waits)


def test_embeddings_take_no_place() -> None:
    engine = busy_engine()
    assert reason(engine.door, engine.now_s, generates=False, stream=False) is None


@pytest.mark.parametrize(
    "report",
    [
        {"waiting": 0},  # an image of theirs does not come
        {"kv_usage": 0.95},  # they wait for the cache
        {"deferred": 3},  # the engine has put them off
        {"generated_tokens": 0},  # its streams stand still as well
    ],
)
def test_other_causes_of_a_wait_teach_no_number_of_streams(report: dict[str, Any]) -> None:
    engine = busy_engine(**report)
    assert reason(engine.door, engine.now_s) is None


def test_prompts_behind_a_long_one_of_a_stranger_teach_no_number_of_streams() -> None:
    """Another proxy has sent it. Streams are held up meanwhile."""
    engine = Engine()
    for _ in range(5):
        engine.come(max_tokens=100_000)
    stuck = engine.door.enter(10, 0.0)
    engine.passes(1, running=5, waiting=2)
    engine.passes(4, running=5, waiting=2, generated_tokens=engine.tokens)
    engine.door.first(stuck, engine.now_s)
    assert reason(engine.door, engine.now_s) is None


def test_a_prompt_that_takes_as_long_as_its_work_is_not_stuck() -> None:
    engine = Engine()
    for _ in range(5):
        engine.come(max_tokens=100_000)
    long = engine.door.enter(60_000, 0.0)  # more than four seconds at the assumed speed
    engine.passes(3, running=5, waiting=1)
    assert reason(engine.door, engine.now_s) is WaitReason.PROMPTS
    engine.door.first(long, engine.now_s)
    assert reason(engine.door, engine.now_s) is None


def test_the_number_is_forgotten_when_more_streams_have_run_and_not_before() -> None:
    """By a report between two steps it ran one less. If the number were forgotten then, all that
    waits would be sent there at once, and wait in the engine."""
    engine = busy_engine()
    assert reason(engine.door, engine.now_s) is WaitReason.SEQUENCES
    engine.passes(1, running=Engine.PLACES - 1)
    engine.passes(1, running=Engine.PLACES, waiting=0)
    assert reason(engine.door, engine.now_s) is WaitReason.SEQUENCES
    engine.passes(1, running=20, waiting=0)
    assert reason(engine.door, engine.now_s) is None


def test_each_choice_takes_a_place() -> None:
    engine = busy_engine()
    for request in engine.running[:6]:
        engine.end(request)
    engine.passes(1)
    assert reason(engine.door, engine.now_s) is None
    engine.come(choices=4, max_tokens=10)
    assert reason(engine.door, engine.now_s) is WaitReason.SEQUENCES


# What is not known -------------------------------------------------------------------------


def test_what_is_not_known_is_taken_for_free() -> None:
    """Neither the cache nor the places of the engine are known."""
    door = Door("a")
    for number in range(300):
        request = door.enter(1_000, 0.1 * number, max_tokens=10_000)
        assert door.is_sent(request)
        door.first(request, 0.1 * number)


@pytest.mark.parametrize(("age_s", "expected"), [(1.0, WaitReason.KV_CACHE), (100.0, None)])
def test_an_old_report_limits_nothing(age_s: float, expected: WaitReason | None) -> None:
    door = Door("a", kv_tokens=10_000)
    door.first(door.enter(8_000, name="other"), 0.1)
    assert reason(door, age_s, 4_000) is expected


def test_a_backend_that_refuses_for_load_is_not_called_full() -> None:
    door = Door("a")
    leave_alone(door.backends[0], "", 0.0, 1.0)
    assert reason(door, 0.5) is WaitReason.BUSY
    assert reason(door, 0.5, engine=False) is WaitReason.BUSY
    assert reason(door, 1.5) is None


def test_a_full_backend_is_no_longer_waited_for_when_it_has_ended_something() -> None:
    door = full("a")
    door.backends[0].max_requests = 1
    assert reason(door, 0.0, FILLS) is WaitReason.REQUESTS
    assert reason(door, 0.0, 5, engine=False) is WaitReason.REQUESTS
    door.finish(door.running[0], 0.2)
    assert reason(door, 0.2, FILLS) is None
