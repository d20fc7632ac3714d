"""The contract that every policy keeps, whatever it looks at."""

from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import AdminState, Backend, State
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.fleet import UnknownModel
from penstock.balancing.gate import NoBackend
from penstock.balancing.lease import Lease, Reason
from penstock.balancing.load import Counts
from penstock.balancing.policies import POLICIES
from penstock.conf.kinds import POLICY_NAMES
from tests.unit.balancing.backends import LOAD_READING, gate_over, ready
from tests.unit.balancing.policies.sending import sent

every_policy = pytest.mark.parametrize("name", POLICIES)
every_loaded = pytest.mark.parametrize("name", LOAD_READING)

ASK = Ask("/v1/completions", prompt_tokens=100, stream=True)
KEYED = Ask("/v1/completions", prompt_tokens=100, stream=True, session="s-1")
CHI_SQUARE_0_1_PERCENT = {1: 10.83, 2: 13.82, 3: 16.27}

every_ask = pytest.mark.parametrize("ask", [ASK, KEYED], ids=["keyless", "keyed"])


def loaded(name: str, level: int) -> Backend:
    """A backend with `level` units of every kind of load, by real leases."""
    backend = ready(name)
    for _ in range(level):
        Lease(backend, ASK, 0.0)
    return backend


def chi_square(seen: Counter[str], names: Sequence[str]) -> float:
    expected = sum(seen.values()) / len(names)
    return sum((seen[name] - expected) ** 2 / expected for name in names)


def test_the_configuration_names_the_policies_that_exist() -> None:
    assert set(POLICY_NAMES) == set(POLICIES)


@every_policy
@every_ask
@pytest.mark.parametrize(
    ("state", "admin_state"),
    [
        (State.STARTING, AdminState.READY),
        (State.EJECTED, AdminState.READY),
        (State.READY, AdminState.DRAIN),
        (State.READY, AdminState.MAINT),
    ],
)
def test_never_an_unfit_backend(name: str, ask: Ask, state: State, admin_state: AdminState) -> None:
    backends = [loaded("busy", 9), ready("unfit"), loaded("busier", 12)]
    backends[1].state, backends[1].admin_state = state, admin_state
    gate = gate_over(backends, name)
    assert all(gate.choose(ask, 0.0).backend is not backends[1] for _ in range(200))


@every_policy
@every_ask
def test_never_one_that_already_failed_this_request(name: str, ask: Ask) -> None:
    backends = [ready(each) for each in "abc"]
    gate = gate_over(backends, name)
    for _ in range(100):
        lease = gate.choose(ask, 0.0, tried={backends[0], backends[2]})
        assert lease.backend is backends[1]
        assert lease.reason is Reason.ONLY or ask.session


@every_policy
@every_ask
def test_one_backend_works_and_none_is_said(name: str, ask: Ask) -> None:
    only = ready("only")
    gate = gate_over([only], name)
    if not ask.session:
        told = gate.explain(ask, 0.0)
        assert (told.chosen, told.reason) == (["only"], Reason.ONLY)
    assert gate.choose(ask, 0.0).backend is only
    with pytest.raises(NoBackend):
        gate.choose(ask, 0.0, tried={only})
    only.state = State.EJECTED
    with pytest.raises(NoBackend):
        gate.choose(ask, 0.0)


@every_policy
def test_only_who_serves_the_model(name: str) -> None:
    backends = [ready(each) for each in "abc"]
    backends[0].models = {"other": b"{}"}
    backends[1].models = {"mine": b"{}"}
    backends[2].models = {"other": b"{}"}
    gate = gate_over(backends, name)
    ask = Ask("/v1/completions", model="mine")
    assert all(gate.choose(ask, 0.0).backend is backends[1] for _ in range(50))
    with pytest.raises(UnknownModel):
        gate.choose(Ask("/v1/completions", model="nobody's"), 0.0)


@every_policy
def test_ties_split_evenly(name: str) -> None:
    names = ["a", "b", "c", "d"]
    gate = gate_over([ready(each) for each in names], name, seed=3)
    seen: Counter[str] = Counter()
    for _ in range(4_000):
        lease = gate.choose(ASK, 0.0)
        seen[lease.backend.name] += 1
        lease.end(0.0)
    assert chi_square(seen, names) < CHI_SQUARE_0_1_PERCENT[3]


@every_policy
def test_the_order_of_the_pool_does_not_matter(name: str) -> None:
    """Over all orders of four unequal backends each position is chosen alike.

    The average over orders makes the position's share 1/4 for a policy without
    bias, whatever it prefers; a policy that leans to the first or last shows.
    """
    rng = Random(5)
    positions: Counter[str] = Counter()
    for order in permutations(range(1, 5)):
        backends = [loaded(str(level), level) for level in order]
        for _ in range(100):
            # A fresh policy: round robin's memory would even out its own bias.
            chosen = POLICIES[name](backends).choose(backends, ASK, 0.0, rng)
            positions[str(backends.index(chosen))] += 1
    assert chi_square(positions, ["0", "1", "2", "3"]) < CHI_SQUARE_0_1_PERCENT[3]


@every_policy
@every_ask
def test_what_is_explained_is_what_is_chosen_and_explaining_changes_nothing(
    name: str, ask: Ask
) -> None:
    """Of two alike only one is asked to explain. A policy that draws at random says so."""
    rng = Random(4)
    levels = {"a": 1, "b": 2, "c": 2, "d": 1}
    twins = [[loaded(each, level) for each, level in levels.items()] for _ in range(2)]
    gates = [gate_over(twin, name) for twin in twins]
    draws = name in ("random", "weighted_random", "power_of_two")
    for _ in range(100):
        now = ask.sized(rng.randint(10, 20_000))
        told = gates[0].explain(now, 0.0)
        leases = [gate.choose(now.changed(), 0.0) for gate in gates]
        assert {(lease.backend.name, lease.reason) for lease in leases} == {
            (leases[0].backend.name, leases[0].reason)
        }
        assert draws == (not told.chosen)
        if told.chosen:
            assert leases[0].backend.name in told.chosen
            assert leases[0].reason is told.reason
        if rng.random() < 0.7:
            for lease in leases:
                lease.end(0.0)


@pytest.mark.parametrize("name", ["round_robin", "least_requests", "peak_ewma", "least_tokens"])
def test_all_that_are_explained_to_be_first_are_drawn_and_no_other(name: str) -> None:
    backends = [loaded("a", 2), loaded("b", 1), loaded("c", 1), loaded("d", 2)]
    told = gate_over(backends, name).explain(ASK, 0.0)
    made = [POLICIES[name](backends) for _ in range(60)]
    drawn = {each.choose(backends, ASK, 0.0, Random(seed)).name for seed, each in enumerate(made)}
    assert drawn == set(told.chosen)


def test_power_of_two_ranks_as_the_arithmetic_says() -> None:
    """Of 4 backends: the least is in half of the pairs, the second in a third, never the last."""
    rng = Random(3)
    for order in permutations(range(1, 5)):
        backends = [loaded(str(level), level) for level in order]
        ranks = Counter(
            POLICIES["power_of_two"](backends).choose(backends, ASK, 0.0, rng).name
            for _ in range(1_200)
        )
        assert ranks["4"] == 0
        expected = {"1": 600.0, "2": 400.0, "3": 200.0}
        chi = sum((ranks[rank] - count) ** 2 / count for rank, count in expected.items())
        assert chi < 20.0  # 24 orders: 0.005 % each


@pytest.mark.parametrize("name", ["least_requests", "peak_ewma", "least_tokens"])
def test_the_least_of_all_is_taken(name: str) -> None:
    for order in permutations(range(1, 5)):
        backends = [loaded(str(level), level) for level in order]
        assert POLICIES[name](backends).choose(backends, ASK, 0.0, Random(1)).name == "1"


@every_loaded
def test_more_load_never_attracts(name: str) -> None:
    """A backend's share does not rise when its load does."""
    shares = []
    for level in range(5):
        backends = [loaded("mine", level), loaded("b", 2), loaded("c", 2)]
        policy, rng = POLICIES[name](backends), Random(11)
        picks = [policy.choose(backends, ASK, 0.0, rng) for _ in range(300)]
        shares.append(sum(pick.name == "mine" for pick in picks))
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


@pytest.mark.parametrize("name", ["round_robin", "weighted_random"])
def test_weights_share_the_requests(name: str) -> None:
    backends = [ready("one", 1.0), ready("three", 3.0)]
    gate = gate_over(backends, name, seed=2)
    seen = Counter(gate.choose(ASK, 0.0).backend.name for _ in range(4_000))
    assert 0.72 < seen["three"] / 4_000 < 0.78


@every_loaded
def test_weights_share_the_load(name: str) -> None:
    backends = [ready("one", 1.0), ready("three", 3.0)]
    gate = gate_over(backends, name, seed=2)
    for _ in range(400):
        gate.choose(ASK, 0.0)  # held: the loads grow
    assert 0.72 < backends[1].requests_in_flight / 400 < 0.78


def test_round_robin_takes_turns_and_owes_nothing_to_who_was_away() -> None:
    backends = [ready(each) for each in "abc"]
    gate = gate_over(backends, "round_robin")
    turns = [gate.choose(ASK, 0.0).backend.name for _ in range(9)]
    assert all(len(set(turns[i : i + 3])) == 3 for i in (0, 3, 6))
    backends[1].state = State.EJECTED
    for _ in range(100):
        gate.choose(ASK, 0.0)
    backends[1].state = State.READY
    after = Counter(gate.choose(ASK, 0.0).backend.name for _ in range(30))
    assert after["b"] <= 11  # its turn, not the 50 it missed


def test_least_tokens_sees_what_least_requests_does_not() -> None:
    """One prompt of 20,000 tokens against three of 300."""
    heavy, light = ready("heavy"), ready("light")
    Lease(heavy, Ask("/v1/completions", prompt_tokens=20_000, stream=True), 0.0)
    for _ in range(3):
        Lease(light, Ask("/v1/completions", prompt_tokens=300, stream=True), 0.0)
    assert POLICIES["least_tokens"](()).choose([heavy, light], ASK, 0.0, Random(1)) is light
    assert POLICIES["least_requests"](()).choose([heavy, light], ASK, 0.0, Random(1)) is heavy


def test_peak_ewma_leaves_a_slow_backend_at_once_and_returns() -> None:
    slow, fast = ready("slow"), ready("fast")
    slow.latency.observe(3.0, 0.0)
    fast.latency.observe(0.1, 0.0)
    policy = POLICIES["peak_ewma"](())
    assert policy.choose([slow, fast], ASK, 0.1, Random(1)) is fast
    fast.latency.observe(0.1, 100.0)
    assert policy.choose([slow, fast], ASK, 100.0, Random(1)) is slow


def test_a_remote_load_counts_like_our_own() -> None:
    near, far = ready("near"), ready("far")
    near.remote.take("replica", Counts(5_000, 0, 0, 0, 5, 5), 0.0)
    for name in ("least_requests", "least_tokens", "power_of_two"):
        assert POLICIES[name](()).choose([near, far], ASK, 0.0, Random(1)) is far


def test_traffic_from_elsewhere_counts_while_the_report_is_fresh() -> None:
    shared, free = ready("shared"), ready("free")
    shared.report = EngineReport(at_s=0.0, running=6, waiting=2, known_requests=1)
    choose = POLICIES["least_tokens"](()).choose
    assert {choose([shared, free], ASK, 1.0, Random(seed)).name for seed in range(20)} == {"free"}
    stale = {choose([shared, free], ASK, 60.0, Random(seed)).name for seed in range(20)}
    assert stale == {"shared", "free"}


@every_policy
def test_a_choice_that_is_not_followed_changes_nothing(name: str) -> None:
    """Of two alike, one is looked at before each request, as for a request that has to wait."""
    levels = {"a": 1, "b": 2, "c": 1}
    looked, other = [[loaded(each, level) for each, level in levels.items()] for _ in "12"]
    policy, twin, rng, same = POLICIES[name](looked), POLICIES[name](other), Random(4), Random(4)
    for number in range(200):
        ask = Ask("/", prompt_tokens=1 + 37 * number % 9_000, stream=True)
        for _ in range(3):
            policy.choose(looked, ask, 0.0, Random(number))
            policy.costs(looked, ask, 0.0)
        chosen = sent(policy, looked, ask, 0.0, rng)
        assert chosen.name == sent(twin, other, ask, 0.0, same).name
