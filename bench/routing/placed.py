"""One proxy of an experiment, and a request that it has placed."""

from dataclasses import dataclass
from typing import Final

from penstock.balancing.admission.controller import Admission
from penstock.balancing.backend import Backend
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.output_length import OutputLength
from penstock.bench.baselines.view import View
from penstock.bench.routing.outcome import Outcome
from penstock.bench.routing.trace import Arrival, block_hashes
from penstock.bench.sim.engine import Sequence as EngineSequence

PATH: Final = "/v1/completions"


@dataclass(slots=True)
class Router:
    """One proxy: its gate, and what a rule of another router's sees, where that is the policy."""

    gate: Gate
    admission: Admission
    known: tuple[Backend, ...]
    view: View | None
    lengths: OutputLength


class Request:
    """One request on its way: told of its tokens by the engine."""

    __slots__ = (
        "_index",
        "_lengths",
        "_outcome",
        "_uncached_tokens",
        "_untold",
        "_view",
        "arrival",
        "last_s",
        "lease",
        "now_s",
        "sequence",
        "ttft_s",
    )

    def __init__(
        self,
        arrival: Arrival,
        lease: Lease,
        router: Router,
        outcome: Outcome,
        block_tokens: int,
        *,
        untold: bool,
    ) -> None:
        view = router.view
        self._untold = untold
        self.arrival = arrival
        self.lease = lease
        self._lengths = router.lengths
        self._index = int(lease.backend.name)
        self._view = view
        self._uncached_tokens = view.sent(self._index, arrival) if view is not None else 0
        self._outcome = outcome
        self.ttft_s = 0.0
        self.last_s = 0.0
        hashes = block_hashes(arrival, block_tokens)
        self.sequence = EngineSequence(
            arrival.prompt_tokens, max(1, arrival.output_tokens), self, None, hashes
        )
        self.now_s = 0.0

    def token(self) -> None:
        """A token came, at `now_s`."""
        now_s = self.now_s
        lease = self.lease
        stream = lease.ask.stream
        if not self.last_s:
            self.ttft_s = now_s - self.arrival.at_s
        else:
            self._outcome.gap(now_s - self.last_s)
        if lease.first_token_s is None and (stream or self.sequence.done):
            lease.first_token(now_s)
        if stream:
            lease.tokens(1)
        if self._view is not None:
            self._tell(self._view)
        self.last_s = now_s
        if self.sequence.done:
            cached_tokens = None if self._untold else self.sequence.cached_tokens
            lease.settle(self.arrival.prompt_tokens, cached_tokens)
            lease.complete(now_s, self.sequence.generated)
            self._lengths.observe(self.arrival.tenant, None, PATH, None, self.sequence.generated)
            self._outcome.add(self.arrival, self.ttft_s, now_s, self.sequence.cached_tokens)

    def broken(self, now_s: float) -> None:
        """Its engine died."""
        self.lease.fail(now_s, suspicious=False, penal=False)
        if self._view is not None:
            if self.sequence.generated == 0:
                self._view.began(self._index, self.arrival, self._uncached_tokens)
            self._view.ended(self._index, self.arrival, self.sequence.generated)

    def _tell(self, view: View) -> None:
        generated = self.sequence.generated
        if generated == 1:
            view.began(self._index, self.arrival, self._uncached_tokens)
        view.token(self._index)
        if self.sequence.done:
            view.ended(self._index, self.arrival, generated)
