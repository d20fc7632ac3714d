"""What other replicas report: one entry for each, by its age, and every request counted once."""

from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.load import AGE_S_MAX, COUNT_MAX, SOURCES_MAX, Counts, RemoteLoad
from penstock.balancing.starts import SlowStart
from tests.unit.balancing.backends import gate_over, ready

NOTHING = Counts(0, 0, 0, 0, 0, 0)


def holding(requests: int) -> Counts:
    """So many requests, each with a prompt of 100 tokens that waits."""
    return Counts(100 * requests, 100 * requests, 0, 0, requests, requests)


def fleet(*names: str, policy: str = "least_tokens") -> tuple[Gate, list[Backend]]:
    backends = [ready(name) for name in names]
    return gate_over(backends, policy), backends


def chosen(gate: Gate, now_s: float) -> str:
    lease = gate.choose(Ask("/v1/completions", prompt_tokens=100), now_s)
    lease.end(now_s)
    return lease.backend.name


def test_a_and_b_report_and_a_ages_and_returns() -> None:
    """A transcript: when, what happens, and the requests that count then."""
    load = RemoteLoad()
    story: list[tuple[float, str, int, int]] = [
        (0.0, "A", 3, 3),
        (1.0, "B", 4, 7),
        (2.0, "A", 1, 5),  # in place of the three
        (2.0 + AGE_S_MAX, "", 0, 1),  # B is too old now, A just not
        (2.1 + AGE_S_MAX, "", 0, 0),
        (9.0, "A", 2, 2),
        (9.5, "B", 5, 7),
        (10.0, "A", 0, 5),
    ]
    for now_s, source, requests, counted in story:
        if source:
            load.take(source, holding(requests), now_s)
        load.expire(now_s)
        assert (load.requests, load.queued_work) == (counted, 100 * counted), now_s


def test_a_report_that_was_overtaken_or_is_too_old_changes_nothing() -> None:
    load = RemoteLoad()
    load.take("A", holding(3), 10.0, age_s=0.1)
    load.take("A", holding(9), 10.2, age_s=0.5)
    load.take("B", holding(9), 10.2, age_s=AGE_S_MAX + 0.1)
    assert load.requests == 3
    load.take("A", holding(2), 10.3, age_s=-50.0)  # it counts as of this moment
    load.expire(10.3 + AGE_S_MAX + 0.1)
    assert load.requests == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_sum_is_that_of_what_each_said_last(seed: int) -> None:
    rng, load, now_s = Random(seed), RemoteLoad(), 0.0
    last: dict[str, tuple[float, Counts]] = {}
    for _ in range(300):
        now_s += rng.expovariate(4.0 / AGE_S_MAX)
        source = rng.choice("ABCDE")
        counts = Counts(*[rng.randrange(1_000) for _ in Counts._fields])
        load.take(source, counts, now_s)
        last[source] = now_s, counts
        now_s += rng.expovariate(4.0 / AGE_S_MAX)
        load.expire(now_s)
        live = [counts for at_s, counts in last.values() if now_s - at_s <= AGE_S_MAX]
        for name, values in zip(Counts._fields, zip(NOTHING, *live, strict=True), strict=True):
            assert getattr(load, name) == sum(values)


def test_the_number_of_sources_is_bounded() -> None:
    load = RemoteLoad()
    for number in range(10 * SOURCES_MAX):
        load.take(f"replica-{number}", holding(1), 0.0)
    assert load.requests == SOURCES_MAX
    load.take("replica-0", holding(5), 1.0)  # one that is known goes on
    assert load.requests == SOURCES_MAX + 4
    load.take("late", holding(1), 0.5 + AGE_S_MAX)  # there is room again
    assert load.requests == 6


def test_a_request_of_another_replica_is_not_hidden_too(backend: Backend) -> None:
    """Of six in the engine two are ours, three are A's and one is a stranger's."""
    for _ in range(2):
        Lease(backend, Ask("/v1/completions", prompt_tokens=100), 0.0)

    def scraped(now_s: float) -> float:
        known = backend.known_requests(now_s)
        backend.take(EngineReport(now_s, running=6, known_requests=known))
        return backend.requests_in_flight + backend.hidden_requests(now_s)

    assert scraped(0.0) == 6.0
    backend.remote.take("A", holding(3), 1.0)
    assert scraped(2.0) == 6.0
    assert backend.hidden_requests(2.0) == 1.0
    assert scraped(1.1 + AGE_S_MAX) == 6.0  # A is silent, and its requests are still there
    assert backend.hidden_requests(1.1 + AGE_S_MAX) == 4.0


@pytest.mark.parametrize("remote_tokens", [0, 50_000])
def test_an_engines_speed_is_learnt_with_all_that_it_holds(
    backend: Backend, remote_tokens: int
) -> None:
    backend.remote.take("A", NOTHING._replace(active_decode_tokens=remote_tokens), 0.0)
    ask = Ask("/v1/completions", prompt_tokens=100, stream=True)
    lease = Lease(backend, ask, 0.0)
    lease.first_token(0.1)
    lease.tokens(99)
    lease.complete(1.9, 100)
    assert backend.decode_speed.usual_held_tokens == remote_tokens + 100 + 99 / 2


def test_slow_start_is_one_ramp_for_all_replicas() -> None:
    gate, (back, other) = fleet("back", "ready")
    back.state, back.slow_start = State.WARMING, SlowStart(0.0, 30.0)
    other.remote.take("A", holding(20), 0.0)
    assert chosen(gate, 0.0) == "back"
    back.remote.take("A", holding(1), 0.1)
    assert chosen(gate, 0.1) == "back"  # a tenth of the other's twenty is two
    back.remote.take("A", holding(2), 0.2)
    assert chosen(gate, 0.2) == "ready"


def test_a_silent_replica_does_not_keep_a_backend_from_its_slow_start() -> None:
    gate, (back, _) = fleet("back", "ready")
    back.state, back.slow_start = State.WARMING, SlowStart(0.0, 30.0)
    back.remote.take("A", holding(8), 0.0)
    assert chosen(gate, 1.0) == "ready"
    assert {chosen(gate, 0.1 + AGE_S_MAX) for _ in range(20)} == {"back", "ready"}


@pytest.mark.parametrize("count", [-1, COUNT_MAX + 1, 10**400])
def test_an_impossible_count_is_not_taken(count: int) -> None:
    for field in Counts._fields:
        load = RemoteLoad()
        load.take("A", NOTHING._replace(**{field: count}), 0.0)
        assert getattr(load, field) == 0


@pytest.mark.parametrize("policy", ["least_tokens", "least_requests", "peak_ewma", "token_cost"])
def test_an_absurd_load_turns_requests_away_and_takes_no_backend_out(policy: str) -> None:
    gate, (a, b) = fleet("a", "b", policy=policy)
    a.remote.take("wrong", Counts(*[COUNT_MAX] * 6), 0.0)
    assert {chosen(gate, 0.1) for _ in range(20)} == {"b"}
    b.state = State.EJECTED
    assert chosen(gate, 0.2) == "a"  # alone it serves, whatever is said of it
    b.state = State.READY
    b.remote.take("wrong", Counts(*[COUNT_MAX] * 6), 0.3)
    assert {chosen(gate, 0.4) for _ in range(20)} == {"a", "b"}
    b.remote.take("right", holding(2), 0.35 + AGE_S_MAX)
    assert {chosen(gate, 0.4 + AGE_S_MAX) for _ in range(20)} == {"a"}
