"""Clients with little patience, admission and simulated engines, in discrete-event time.

Choices and leases are the real ones. Prompts are known with the error of estimates. There is a
network before the engines, so that what is sent always misses the step in progress.
"""

from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass
from functools import partial
from math import exp
from random import Random
from typing import Any, Final

from penstock.balancing.admission.controller import Admission, Rules
from penstock.balancing.admission.degradation import Degradation, Step
from penstock.balancing.admission.queued_request import Outcome, QueuedRequest, TooLate
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.gate import Gate, NoBackend
from penstock.balancing.lease import Lease
from penstock.balancing.output_length import OutputLength
from penstock.balancing.policies import POLICIES
from penstock.bench.overload.calls import Call, Log, delay_s
from penstock.bench.overload.mixes import ENGINES, Begins, Mix
from penstock.bench.routing.experiment import ESTIMATE_SIGMA, SCRAPE_S
from penstock.bench.routing.trace import BLOCK_TOKENS
from penstock.bench.sim.engine import Engine, Sequence
from penstock.bench.sim.profiles import Gpu
from penstock.bench.virtual_time import Engines, Stranger

PATH: Final = "/v1/completions"
NETWORK_S: Final = 0.001
GOOD_TTFT_S: Final = 5.0
GOOD_TPOT_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Site:
    """`profiles`: one for each engine. `network_s`: until a request is there. `back_s`: until a
    token is here. `reports`: the engines' metrics are read. `tells_cache`: they have the size of
    the KV cache."""

    profiles: tuple[Gpu, ...]
    network_s: float = NETWORK_S
    back_s: float = 0.0
    reports: bool = True
    tells_cache: bool = True

    @property
    def round_trip_s(self) -> float:
        return self.network_s + self.back_s


@dataclass(frozen=True, slots=True)
class Class:
    """A class of requests. `share`: it has at least that. `impatient`: its clients leave at the
    deadline."""

    deadline_s: float
    share: float = 0.0
    impatient: bool = True


class Attempt:
    """One request of a call, from its coming to its end."""

    def __init__(self, call: Call, at_s: float) -> None:
        self.call, self.at_s = call, at_s
        self.ticket: QueuedRequest | None = None
        self.lease: Lease | None = None
        self.sequences: list[Sequence] = []  # one for each choice
        self.left = call.choices  # that are not whole
        self.index = -1
        self.computed = False  # its prompt is
        self.first_s = 0.0
        self.over = False

    def token(self) -> None:
        """An engine's sequence has an owner with this. The world looks at the owner itself."""


class World(Engines):
    def __init__(
        self,
        mix: Mix | Site,
        *,
        enabled: bool,
        seed: int,
        policy: str = "token_cost",
        steps: tuple[Step, ...] = (),
        degradable: Collection[str] | None = None,
        classes: List[Class] = (Class(GOOD_TTFT_S),) * 2,
    ) -> None:
        """`steps`: they cap answers, for all tenants or for these (`degradable`). `classes`:
        deadlines and shares, class by class. A client with less patience says so."""
        site = mix if isinstance(mix, Site) else Site((mix.profile,) * ENGINES)
        self.site = site
        self._classes = classes
        self._rng = Random(f"clients {seed}")
        super().__init__(
            [Engine(profile, Random(f"{seed} {i}")) for i, profile in enumerate(site.profiles)]
        )
        names = [str(i) for i in range(len(self.engines))]
        self.backends = tuple(Backend(name, f"http://gpu-{name}", "gpus") for name in names)
        for backend in self.backends:
            backend.state, backend.round_trip_s = State.READY, site.round_trip_s
        self.pool = Pool("gpus", self.backends, POLICIES[policy](self.backends))
        fleet = Fleet((self.pool,))
        self.gate = Gate(lambda: fleet, Random(f"gate {seed}"))
        rules = Rules(enabled=enabled, shares=tuple(each.share for each in self._classes))
        rng = Random(f"admission {seed}")
        self.admission = Admission(self.gate, lambda: fleet, rng, self.wake_soon, rules)
        self.admissions.append(self.admission)
        self._degradation = Degradation()
        self._degradation.follow(steps)
        self._degradable = degradable
        self._lengths = OutputLength()
        self.under_way: list[dict[Sequence, None]] = [{} for _ in self.engines]
        self.on_wait: Callable[[Attempt], None] | None = None
        self.log = Log()

    def run(self, calls: Iterable[Call], until_s: float) -> Log:
        """Play the calls until then, and those that follow them."""
        for call in calls:
            self._plan(call)
        if self.site.reports:
            self.at(0.0, self._scrape)
        self.elapse(until_s)
        return self.log

    @property
    def preemptions(self) -> int:
        return sum(engine.preemptions_total for engine in self.engines)

    def send_past(self, index: int, prompt_tokens: int, output_tokens: int, at_s: float) -> None:
        """Somebody sends an engine a request by another way."""
        sequence = Sequence(prompt_tokens, output_tokens, Stranger())
        self.at(at_s, partial(self._submit, index, sequence))

    def put(self, backends: Iterable[Backend], state: State) -> None:
        """Eject them, or have them back. What runs there goes on."""
        for backend in backends:
            backend.state = state
        self.wake_soon()

    def clear_caches(self) -> None:
        """The engines forget all prompts that are not running. Nobody is told."""
        for engine in self.engines:
            engine.cache.forget()

    # Admission ---------------------------------------------------------------------------------

    def _scrape(self, now_s: float) -> None:
        for backend in self.backends:
            self.report(backend, now_s, tells_cache=self.site.tells_cache)
        self.at(now_s + SCRAPE_S, self._scrape)

    # Clients -----------------------------------------------------------------------------------

    def _plan(self, call: Call | None) -> None:
        if call is not None:
            self.log.calls.append(call)
            self.at(call.at_s, partial(self._come, call))

    def _come(self, call: Call, now_s: float) -> None:
        call.attempts += 1
        call.capped = most = self._most(call, now_s)
        estimate = call.prompt_tokens * exp(self._rng.gauss(0.0, ESTIMATE_SIGMA))
        blocks = tuple(self._blocks(call, BLOCK_TOKENS))
        ask = Ask(
            PATH,
            blocks=blocks,
            block_tokens=BLOCK_TOKENS * estimate / call.prompt_tokens,
            prompt_tokens=max(1, round(estimate)),
            choices=call.choices,
            stream=call.shown.stream,
            generates=call.shown.generates,
            tenant=call.tenant,
            client=call.tenant,
            max_tokens=most,
            output_tokens=self._lengths.expect(call.tenant, None, PATH, most),
        )
        attempt = Attempt(call, now_s)
        self.at(now_s + call.patience_s, partial(self._lose_patience, attempt))
        each = self._classes[call.rank]
        attempt.ticket = QueuedRequest(
            ask,
            now_s,
            partial(self._ready, attempt),
            name=call.tenant,
            rank=call.rank,
            deadline_s=min(each.deadline_s, call.patience_s),
            impatient=each.impatient,
        )
        try:
            outcome: Outcome | None = self.admission.enter(attempt.ticket, now_s)
        except NoBackend as error:
            outcome = error
        if outcome is not None:
            self._ready(attempt, outcome)
        else:
            self.wake_soon()
            if self.on_wait is not None:
                self.on_wait(attempt)

    def _blocks(self, call: Call, block_tokens: int) -> list[int]:
        """The blocks of its prompt that others have, too."""
        if not call.beginning:
            return []
        blocks = call.beginning_tokens // block_tokens
        return [hash((call.beginning, number)) for number in range(blocks)]

    def _most(self, call: Call, now_s: float) -> int | None:
        """The most tokens that its answer may have now."""
        spared = self._degradable is not None and call.tenant not in self._degradable
        if spared or not self._degradation.steps:
            return call.max_tokens
        pool = self.admission.pools.get("gpus")
        deadline_s = self._classes[call.rank].deadline_s
        limits = self._degradation.limits
        return limits(pool, call.tenant, call.rank, deadline_s, now_s)[0]

    def _ready(self, attempt: Attempt, outcome: Outcome) -> None:
        call, now_s = attempt.call, self.now_s
        if isinstance(outcome, Lease):
            attempt.lease = outcome
            attempt.index = int(outcome.backend.name)
            call.sent += 1
            profile = self.engines[attempt.index].profile
            hashes = self._blocks(call, profile.block_tokens)
            if call.choices > 1:  # the engine computes their prompt once
                own = (call.prompt_tokens - 1) // profile.block_tokens - len(hashes)
                hashes += [hash((id(attempt), number)) for number in range(own)]
            for _ in range(call.choices):
                tokens = max(1, call.answer_tokens)
                sequence = Sequence(call.prompt_tokens, tokens, attempt, None, hashes)
                attempt.sequences.append(sequence)
                self.under_way[attempt.index][sequence] = None
                arrive = partial(self._submit, attempt.index, sequence)
                self.at(now_s + self.site.network_s, arrive)
            if call.hidden_tokens and call.shown.begins is Begins.AT_ONCE:
                self.at(now_s + self.site.round_trip_s, partial(self._begin, attempt))
            return
        attempt.over = True
        call.refused += 1
        self.log.refusals.append(now_s)
        hint_s = outcome.retry_after_s if isinstance(outcome, TooLate) else 0.0
        self._again(call, hint_s)

    def _again(self, call: Call, retry_after_s: float = 0.0) -> None:
        if call.attempts <= call.retries:
            wait_s = delay_s(call.attempts, retry_after_s, self._rng)
            self.at(self.now_s + wait_s, partial(self._come, call))
        else:
            self._over(call)

    def _over(self, call: Call) -> None:
        """Its client may go on."""
        if call.loop is not None:
            self._plan(call.loop.next(call, self.now_s))

    def _lose_patience(self, attempt: Attempt, now_s: float) -> None:
        if attempt.over or attempt.first_s:
            return
        attempt.over = True
        if attempt.lease is not None:
            attempt.call.late += 1
            for sequence in attempt.sequences:
                self.engines[attempt.index].abort(sequence)
            attempt.lease.end(now_s)
        else:
            assert attempt.ticket is not None
            self.admission.leave(attempt.ticket, now_s)
        self._again(attempt.call)

    # Engines -----------------------------------------------------------------------------------

    def _submit(self, index: int, sequence: Sequence, now_s: float) -> None:
        owner: Any = sequence.owner
        if sequence in self.under_way[index]:
            del self.under_way[index][sequence]
            if owner.over:
                return
        super()._submit(index, sequence, now_s)

    def emitted(self, index: int, sequences: list[Sequence], now_s: float) -> None:
        tokens = len(sequences)
        for sequence in sequences:
            attempt: Any = sequence.owner
            if attempt.over:
                continue
            if not attempt.computed:
                attempt.computed = True
                tokens += sequence.prompt_tokens
            if self.site.back_s:
                heard = partial(self._hear, attempt, sequence, sequence.generated)
                self.at(now_s + self.site.back_s, heard)
            else:
                self._hear(attempt, sequence, sequence.generated, now_s)
        self.log.tokens.append((now_s, tokens))

    # Answers -----------------------------------------------------------------------------------

    def _hear(self, attempt: Attempt, sequence: Sequence, number: int, now_s: float) -> None:
        """A token came, the `number`th of its choice. Not all are seen."""
        if attempt.over:
            return
        call, shown = attempt.call, attempt.call.shown
        assert attempt.lease is not None
        done = number >= sequence.max_tokens
        if number > call.hidden_tokens and (shown.stream or done):
            if not attempt.first_s:
                self._first(attempt, now_s)
            if shown.stream:
                attempt.lease.tokens(1)
        elif number == 1 and shown.begins is Begins.WITH_FIRST_TOKEN:
            self._begin(attempt, now_s)
        if done:
            attempt.left -= 1
            if not attempt.left:
                self._done(attempt, now_s)

    def _begin(self, attempt: Attempt, now_s: float) -> None:
        """The answer has begun, and shows no token."""
        if attempt.lease is not None and not attempt.over and attempt.call.shown.stream:
            attempt.lease.answering(now_s)

    def _first(self, attempt: Attempt, now_s: float) -> None:
        attempt.first_s = now_s
        ticket = attempt.ticket
        assert attempt.lease is not None
        assert ticket is not None
        attempt.lease.first_token(now_s)
        if ticket.predicted_s:
            self.log.waits.append((ticket.predicted_s, now_s - attempt.at_s))

    def _done(self, attempt: Attempt, now_s: float) -> None:
        attempt.over = True
        lease, call = attempt.lease, attempt.call
        assert lease is not None
        cached_tokens = attempt.sequences[0].cached_tokens if call.beginning else None
        lease.settle(call.prompt_tokens, cached_tokens)
        tokens = call.answer_tokens
        if call.shown.generates:
            lease.complete(now_s, tokens * call.choices)
            self._lengths.observe(call.tenant, None, PATH, call.capped, tokens)
        else:
            lease.complete(now_s)
        call.ttft_s = attempt.first_s - attempt.at_s
        call.tpot_s = (now_s - attempt.first_s) / max(1, tokens - 1)
        call.e2e_s = now_s - call.at_s
        call.late += call.ttft_s > GOOD_TTFT_S
        call.good = call.ttft_s <= GOOD_TTFT_S and call.tpot_s <= GOOD_TPOT_S
        self._over(call)
