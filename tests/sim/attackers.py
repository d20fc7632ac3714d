"""Clients that misbehave, beside a workload of others' on the same simulated engines.

Each asks at a steady rate while the workload lasts. What becomes of the others is in the figures:
only their answers are counted.
"""

from collections.abc import Sequence
from functools import partial
from itertools import count
from random import Random

from penstock.balancing.ask import Ask
from penstock.balancing.computed_prompts import LARGE_TOKENS
from penstock.balancing.lease import Lease
from penstock.bench.routing.cell import maker
from penstock.bench.routing.experiment import PATH, Adversity, Experiment, Router
from penstock.bench.routing.generators import agentic
from penstock.bench.routing.outcome import Outcome
from penstock.bench.routing.trace import BLOCK_TOKENS, Arrival, fitting, speedup
from penstock.bench.sim.engine import Sequence as EngineSequence
from penstock.bench.sim.profiles import GPUS

GPU = GPUS["70b-4xh100"]
BACKENDS = 8
TENANT = "attacker"


class _Answer:
    """What the attacker's engine request tells: only its lease hears of it."""

    def __init__(self, lease: Lease, router: Router, *, untold: bool, shown_from: int) -> None:
        self.lease = lease
        self.router = router
        self.untold = untold
        self.shown_from = shown_from
        self.now_s = 0.0
        self.sequence: EngineSequence | None = None
        self.gives_up = False

    def token(self) -> None:
        sequence = self.sequence
        assert sequence is not None
        if self.lease.first_token_s is None and sequence.generated >= self.shown_from:
            self.lease.first_token(self.now_s)
        if self.lease.first_token_s is not None:
            self.lease.tokens(1)
        if self.gives_up:
            self.lease.end(self.now_s)
        elif sequence.done:
            cached_tokens = None if self.untold else sequence.cached_tokens
            self.lease.settle(sequence.prompt_tokens, cached_tokens)
            self.lease.complete(self.now_s, sequence.generated)
            if self.lease.ask.prompt_tokens >= LARGE_TOKENS:
                self.router.gate.computed(self.lease)


class Attacked(Experiment):
    """An experiment with a client of `per_s` requests a second beside its arrivals.

    `tokens`: of each prompt. `refused_s`: after so long the engine answers 400; None: it serves
    them. `real`: so many tokens there are for the engine, and the client gives up at the first
    token of the answer. `again`: there are only `texts` texts, which a cache would find;
    `reads`: the engine does. `spelt`: the same text for the engine, and another spelling of it each
    time. `late_s`: so long something keeps the engine from scheduling it (a grammar to compile, an
    image to fetch); `leaves_s`: for ever, and its client leaves after that time. Its answers have
    `output_tokens`, of which the first are not shown before `shown_from`.
    """

    def attack(
        self,
        *,
        per_s: float,
        tokens: int,
        refused_s: float | None = None,
        again: bool = False,
        texts: int = 1,
        reads: bool = True,
        spelt: bool = False,
        tenant: str = TENANT,
        real: int | None = None,
        late_s: float = 0.0,
        leaves_s: float | None = None,
        output_tokens: int = 1,
        shown_from: int = 1,
    ) -> None:
        self._tokens = tokens
        self._per_s = per_s
        self._refused_s = refused_s
        self._again = again
        self._reads = reads
        self._spelt = spelt
        self._tenant = tenant
        self._real = real
        self._late_s = late_s
        self._leaves_s = leaves_s
        self._output_tokens = output_tokens
        self._shown_from = shown_from
        self._block = count(-1, -1)
        self._number = count()
        self._texts = [self._fresh() for _ in range(texts)]
        self.at(0.0, self._ask_one)

    def _fresh(self) -> tuple[int, ...]:
        return tuple(next(self._block) for _ in range(self._tokens // BLOCK_TOKENS))

    def _ask_one(self, now_s: float) -> None:
        if now_s > self.until_s:
            return
        self.at(now_s + 1.0 / self._per_s, self._ask_one)
        router: Router = self._routers[0]
        text = self._texts[next(self._number) % len(self._texts)]
        blocks = text if self._again else self._fresh()
        ask = Ask(
            PATH,
            prompt_tokens=self._tokens,
            blocks=blocks,
            block_tokens=float(BLOCK_TOKENS),
            stream=True,
            tenant=self._tenant,
            client=self._tenant,
            output_tokens=router.lengths.expect(self._tenant, None, PATH, None),
            uncut=True,
        )
        lease = router.gate.choose(ask, now_s)
        if self._refused_s is not None:
            self.at(now_s + self._refused_s, partial(self._refuse, router, lease))
            return
        if self._leaves_s is not None:
            self.at(now_s + self._leaves_s, partial(self._leave, router, lease))
            return
        answer = _Answer(lease, router, untold=self._adversity.untold, shown_from=self._shown_from)
        parts = BLOCK_TOKENS // self._profile.block_tokens
        salt = () if self._reads else (next(self._block),)
        hashes = [
            (name, part, *salt)
            for name in (text if self._spelt else blocks)
            for part in range(parts)
        ]
        real = self._real
        if real is not None:
            hashes = hashes[: real // self._profile.block_tokens]
        answer.gives_up = real is not None
        answer.sequence = EngineSequence(
            real or self._tokens, self._output_tokens, answer, None, hashes
        )
        place = partial(self._submit, int(lease.backend.name), answer.sequence)
        if self._late_s:
            self.at(now_s + self._late_s, place)
        else:
            place(now_s)

    def _refuse(self, router: Router, lease: Lease, now_s: float) -> None:
        router.gate.refused(lease, now_s)
        lease.complete(now_s)

    def _leave(self, router: Router, lease: Lease, now_s: float) -> None:
        router.gate.left(lease, now_s)
        lease.end(now_s)

    def _deliver(
        self, index: int, life: int, emissions: list[EngineSequence], now_s: float
    ) -> None:
        others = []
        for sequence in emissions:
            if isinstance(sequence.owner, _Answer):
                sequence.owner.now_s = now_s
                sequence.owner.token()
            else:
                others.append(sequence)
        super()._deliver(index, life, others, now_s)

    def play(self, arrivals: Sequence[Arrival]) -> Outcome:
        self.until_s = arrivals[-1].at_s
        return self.run(arrivals)


def conversations(seconds: float, load: float, seed: int = 1) -> list[Arrival]:
    """Agents' turns at that load."""
    arrivals = fitting(agentic(seconds, Random(seed)), GPU)
    faster = speedup(arrivals, GPU, BACKENDS, load)
    return [each._replace(at_s=each.at_s / faster) for each in arrivals]


def experiment(seed: int = 1, *, untold: bool = False) -> Attacked:
    """The default policy before eight engines."""
    adversity = Adversity(untold=untold)
    return Attacked(
        maker("token_cost"), GPU, backends=BACKENDS, routers=1, seed=seed, adversity=adversity
    )
