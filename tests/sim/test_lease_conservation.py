"""Conservation: the leases of a backend sum up to its load, in any order of events."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease

# Eighteen thousand steps: ten seconds of a whole core, and more beside others.

asks = st.builds(
    Ask,
    path=st.just("/v1/completions"),
    prompt_tokens=st.integers(1, 50_000),
    prompts=st.integers(1, 5),
    choices=st.integers(1, 4),
    stream=st.booleans(),
    generates=st.booleans(),
)


class Leases(RuleBasedStateMachine):
    """Random interleavings of everything that may happen to requests."""

    leases = Bundle("leases")

    @initialize()
    def fleet(self) -> None:
        self.backends = [Backend(name, "http://127.0.0.1:1") for name in "ab"]
        self.now_s = 0.0
        self.open: set[Lease] = set()

    @rule(target=leases, ask=asks, which=st.integers(0, 1))
    def begin(self, ask: Ask, which: int) -> Lease:
        lease = Lease(self.backends[which], ask, self.now_s)
        self.open.add(lease)
        return lease

    @rule(lease=leases, index=st.integers(-1, 25))
    def first_token(self, lease: Lease, index: int) -> None:
        lease.first_token(self.now_s, index)

    @rule(lease=leases)
    def answering(self, lease: Lease) -> None:
        lease.answering(self.now_s)

    @rule(lease=leases, count=st.integers(1, 9))
    def tokens(self, lease: Lease, count: int) -> None:
        lease.tokens(count)

    @rule(lease=leases, failed=st.booleans())
    def end(self, lease: Lease, failed: bool) -> None:
        """Ends it, perhaps again: the bundle keeps ended leases on purpose."""
        if failed:
            lease.fail(self.now_s)
        else:
            lease.end(self.now_s)
        self.open.discard(lease)

    @rule(lease=consumes(leases))
    def forget(self, lease: Lease) -> None:
        lease.end(self.now_s)
        self.open.discard(lease)

    @rule(seconds=st.floats(0.0, 30.0))
    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        for backend in self.backends:
            backend.advance(self.now_s)

    @invariant()
    def the_load_is_what_is_open(self) -> None:
        for backend in getattr(self, "backends", ()):
            mine = [lease for lease in self.open if lease.backend is backend]
            own = backend.own
            assert own.requests == len(mine)
            assert own.queued_prefill_tokens >= 0
            assert own.active_decode_tokens >= 0
            assert 0 <= own.streams <= own.requests
            generated = sum(lease.generated_tokens for lease in mine)
            prompts = sum(lease.ask.prompt_tokens for lease in mine)
            assert own.queued_prefill_tokens + own.active_decode_tokens == prompts + generated
            if not mine:
                assert own.idle

    def teardown(self) -> None:
        for lease in list(self.open):
            lease.end(self.now_s)
        for backend in getattr(self, "backends", ()):
            backend.advance(self.now_s + 1e9)
            assert backend.own.idle


Leases.TestCase.settings = settings(
    max_examples=1_500,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestLeases = Leases.TestCase
