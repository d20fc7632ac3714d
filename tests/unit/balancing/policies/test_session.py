"""The policy `session`: whose a request is, when it moves on, and what is said of it."""

from collections import Counter
from random import Random

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import AdminState, Backend, State
from penstock.balancing.gate import NoBackend
from penstock.balancing.lease import Lease, Reason
from penstock.balancing.load import Counts
from penstock.balancing.policies.session import EPSILON, SLACK_TOKENS, Session, held_tokens
from penstock.balancing.policies.simple import LeastTokens
from tests.unit.balancing.backends import gate_over, ready


def keyed(session: str | None, tokens: int = 100) -> Ask:
    return Ask("/v1/completions", prompt_tokens=tokens, stream=True, session=session)


class Pooled:
    """A gate over backends with the policy."""

    def __init__(self, *backends: Backend) -> None:
        self.backends = backends
        self.gate = gate_over(backends, "session", 7)
        self.policy = Session(backends)

    def choose(self, session: str | None, tokens: int = 100, *tried: Backend) -> Lease:
        return self.gate.choose(keyed(session, tokens), 0.0, tried)

    def home(self, session: str) -> Backend:
        name = self.policy.home(keyed(session))
        return next(backend for backend in self.backends if backend.name == name)

    @property
    def mean_tokens(self) -> float:
        return sum(map(held_tokens, self.backends)) / len(self.backends)


@pytest.fixture
def pool() -> Pooled:
    return Pooled(*map(ready, "abcd"))


def test_a_session_stays_where_it_belongs(pool: Pooled) -> None:
    for number in range(200):
        for _ in range(3):
            lease = pool.choose(f"s{number}")
            assert lease.backend is pool.home(f"s{number}")
            assert lease.reason is Reason.AFFINITY
            lease.end(0.0)


def test_an_absence_moves_only_its_own_sessions_and_they_come_back(pool: Pooled) -> None:
    sessions = [f"s{number}" for number in range(400)]
    gone = pool.backends[1]
    gone.state = State.EJECTED
    for session in sessions:
        lease = pool.choose(session)
        if pool.home(session) is gone:
            assert (lease.backend is not gone, lease.reason) == (True, Reason.SPILL)
        else:
            assert (lease.backend, lease.reason) == (pool.home(session), Reason.AFFINITY)
        lease.end(0.0)
    gone.state = State.READY
    for session in sessions:
        lease = pool.choose(session)
        assert lease.backend is pool.home(session)
        lease.end(0.0)


def test_a_drained_and_a_tried_home_are_passed_over_to_the_same_next_one(pool: Pooled) -> None:
    home = pool.home("s")
    tried = pool.choose("s", 100, home)
    tried.end(0.0)
    home.admin_state = AdminState.DRAIN
    drained = pool.choose("s")
    assert tried.backend is drained.backend is not home
    assert tried.reason is drained.reason is Reason.SPILL


def test_the_last_one_left_is_home_or_not(pool: Pooled) -> None:
    home = pool.home("s")
    others = [backend for backend in pool.backends if backend is not home]
    assert pool.choose("s", 100, *others).reason is Reason.AFFINITY
    assert pool.choose("s", 100, home, *others[1:]).reason is Reason.SPILL
    assert pool.choose(None, 100, *others).reason is Reason.ONLY
    with pytest.raises(NoBackend):
        pool.choose("s", 100, *pool.backends)


@pytest.mark.parametrize("tokens", [10, 1_000, 20_000])
def test_one_hot_session_cannot_push_its_backend_over_the_bound(pool: Pooled, tokens: int) -> None:
    seen: Counter[Reason] = Counter()
    for _ in range(max(400, 400_000 // tokens)):
        before = pool.mean_tokens
        lease = pool.choose("hot", tokens)
        seen[lease.reason] += 1
        bound = (1 + EPSILON) * before + SLACK_TOKENS + tokens
        assert held_tokens(lease.backend) <= bound
    assert seen[Reason.AFFINITY]
    assert seen[Reason.SPILL]
    # At rest in the mean: the home holds its bound and not more.
    assert held_tokens(pool.home("hot")) <= 1.5 * pool.mean_tokens + SLACK_TOKENS + tokens
    assert sum(held_tokens(backend) > 0 for backend in pool.backends) == 3  # 4 / (1 + EPSILON)


def test_less_than_one_step_of_work_moves_nobody(pool: Pooled) -> None:
    """In an idle fleet any load is above the mean, yet nobody waits for it."""
    leases = [pool.choose("s", 1_000) for _ in range(9)]
    assert {lease.backend for lease in leases} == {pool.home("s")}
    assert held_tokens(pool.home("s")) > SLACK_TOKENS


def test_open_streams_count_like_queued_prompts(pool: Pooled) -> None:
    home = pool.home("s")
    lease = Lease(home, keyed(None, 2 * SLACK_TOKENS), 0.0)
    lease.first_token(0.1)
    assert home.queued_prefill_tokens == 0
    assert pool.choose("s").reason is Reason.SPILL
    lease.end(0.2)
    assert pool.choose("s").reason is Reason.AFFINITY


def test_what_other_replicas_hold_there_counts_too(pool: Pooled) -> None:
    pool.home("s").remote.take("replica", Counts(2 * SLACK_TOKENS, 0, 0, 0, 1, 1), 0.0)
    assert pool.choose("s").reason is Reason.SPILL


def test_a_heavier_backend_may_hold_more() -> None:
    pool = Pooled(ready("small", 1.0), ready("large", 3.0))
    for name, expected in (("small", Reason.SPILL), ("large", Reason.AFFINITY)):
        session = next(s for s in map(str, range(100)) if pool.policy.home(keyed(s)) == name)
        lease = Lease(pool.home(session), keyed(None, 100_000), 0.0)
        other = next(b for b in pool.backends if b.name != name)
        others = Lease(other, keyed(None, 60_000), 0.0)
        # Fair shares of 160,000: 40,000 and 120,000; bounds 68,192 and 188,192.
        assert pool.choose(session).reason is expected
        for each in (lease, others):
            each.end(0.0)
        for backend in pool.backends:
            backend.own.__init__()  # type: ignore[misc]


def test_without_a_key_it_is_least_tokens_choice_for_choice() -> None:
    mine, others = Pooled(*map(ready, "abcd")), list(map(ready, "abcd"))
    policy, rng = LeastTokens(), Random(7)
    for number in range(500):
        tokens = 100 + number * 37 % 1_000
        lease = mine.choose(None, tokens)
        chosen = policy.choose(others, keyed(None, tokens), 0.0, rng)
        Lease(chosen, keyed(None, tokens), 0.0)
        assert (lease.backend.name, lease.reason) == (chosen.name, Reason.COST)
    counts = [backend.requests_in_flight for backend in mine.backends]
    assert max(counts) - min(counts) < 20


def test_sessions_spread_over_the_pool(pool: Pooled) -> None:
    homes = Counter(pool.policy.home(keyed(f"s{number}")) for number in range(4_000))
    assert all(700 < homes[name] < 1_300 for name in "abcd")


# Explanations -----------------------------------------------------------------------------


def why_not(pool: Pooled, session: str | None) -> dict[str, str]:
    found = pool.gate.explain(keyed(session), 0.0).candidates
    return {each.backend.name: each.out or each.part.why_not for each in found}


def test_a_session_at_home_is_explained(pool: Pooled) -> None:
    home = pool.home("s").name
    told = pool.gate.explain(keyed("s"), 0.0)
    assert (told.chosen, told.reason) == ([home], Reason.AFFINITY)
    others = dict.fromkeys(set("abcd") - {home}, f"{home} comes first on the ring for this session")
    assert why_not(pool, "s") == {home: ""} | others


def test_a_home_that_holds_too_much_is_explained(pool: Pooled) -> None:
    home = pool.home("s")
    lease = Lease(home, keyed(None, 40_000), 0.0)
    told = pool.gate.explain(keyed("s"), 0.0)
    assert told.reason is Reason.SPILL
    spilled = pool.choose("s")
    spilled.end(0.0)
    assert told.chosen == [spilled.backend.name]
    bound = int(1.5 * 40_000 / 4) + SLACK_TOKENS
    full = f"it holds 40,000 tokens, more than its bound of {bound:,}"
    assert why_not(pool, "s")[home.name] == full
    lease.end(0.0)
    home.penalty.charge(0.0)
    assert why_not(pool, "s")[home.name] == "it failed a short time ago"


def test_a_home_that_is_out_is_explained(pool: Pooled) -> None:
    home = pool.home("s")
    home.admin_state = AdminState.DRAIN
    told = pool.gate.explain(keyed("s"), 0.0)
    assert told.reason is Reason.SPILL
    assert home.name not in told.chosen
    assert why_not(pool, "s")[home.name] == "set to drain by the operator"


def test_where_all_failed_the_least_loaded_is_told(pool: Pooled) -> None:
    for number, backend in enumerate(pool.backends):
        for _ in range(1 + number):
            backend.penalty.charge(0.0, in_row=1 + number)
    told = pool.gate.explain(keyed("s"), 0.0)
    assert told.chosen == ["a"]
    assert set(why_not(pool, "s").values()) == {"", "it failed a short time ago"}


def test_a_request_without_a_key_is_explained_as_least_tokens(pool: Pooled) -> None:
    Lease(pool.backends[0], keyed(None), 0.0)
    told = pool.gate.explain(keyed(None), 0.0)
    assert (told.chosen, told.reason) == (["b", "c", "d"], Reason.COST)
