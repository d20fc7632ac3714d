"""The simulated engine: continuous batching with chunked prefill, in pure arithmetic.

A step gives one token to every decoding sequence and spends what is left of the token budget on
prompts, oldest first; all tokens of a step appear at its end. Time is an argument and nothing
here sleeps: the caller asks for a step, waits for its duration, then delivers its emissions.

A prompt is admitted when the whole of it fits the free KV blocks. Growth while decoding is
counted but never refused: there is no preemption, so usage may pass the capacity, and nothing
new is admitted until it falls below again.
"""

from collections.abc import Iterator
from typing import Protocol

from bench.sim.profiles import Profile


class Listener(Protocol):
    """Whom the engine's caller tells about a sequence's tokens."""

    def token(self) -> None: ...


class Sequence:
    """One prompt and the tokens generated from it."""

    __slots__ = (
        "arrived_s",
        "generated",
        "max_tokens",
        "owner",
        "prefilled",
        "prompt_tokens",
        "stall_at",
    )

    def __init__(
        self, prompt_tokens: int, max_tokens: int, owner: Listener, stall_at: int | None = None
    ) -> None:
        self.prompt_tokens = max(1, prompt_tokens)
        self.max_tokens = max_tokens
        self.owner = owner
        self.stall_at = stall_at
        """The sequence hangs, still running, once it has this many tokens."""
        self.prefilled = 0
        self.generated = 0
        self.arrived_s = 0.0

    @property
    def done(self) -> bool:
        return self.generated >= self.max_tokens


class Engine:
    """A queue, a batch, and the KV blocks they hold."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        # Dicts as ordered sets: first come, first served, and removal in O(1).
        self._waiting: dict[Sequence, None] = {}
        self._running: dict[Sequence, None] = {}
        self._partial: Sequence | None = None
        self._finished: list[Sequence] = []
        self._kv_blocks = 0
        self.requests_total = 0
        self.aborted_total = 0
        self.finished_total = 0
        self.prompt_tokens_total = 0
        self.generation_tokens_total = 0
        self.admitted_total = 0
        self.queue_time_s_total = 0.0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache in use, 0 to 1."""
        return min(1.0, self._kv_blocks / self.profile.kv_blocks)

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    def submit(self, sequence: Sequence, now_s: float) -> None:
        """Queue a sequence; the next step may admit it."""
        assert sequence.prompt_tokens <= self.profile.context_tokens, "it would wait for ever"
        sequence.arrived_s = now_s
        self.requests_total += 1
        self._waiting[sequence] = None

    def abort(self, sequence: Sequence) -> bool:
        """Drop a sequence and its blocks at once; False when it is no longer here."""
        if sequence in self._waiting:
            del self._waiting[sequence]
        elif sequence in self._running:
            self._release(sequence)
        else:
            return False
        self.aborted_total += 1
        return True

    def step(self, now_s: float) -> tuple[float, list[Sequence]]:
        """Run one step: its duration, and the sequences that have one more token at its end.

        Finished sequences leave when the next step begins, so a caller must ask again after
        every step. An empty list means that there is nothing to do until something is submitted.
        """
        self._retire()
        decoding = len(self._running) - (self._partial is not None)
        spent = self._prefill(self.profile.max_batched_tokens - decoding, now_s)
        emissions = [
            s for s in self._running if s.prefilled == s.prompt_tokens and s.generated != s.stall_at
        ]
        if not emissions and not spent:
            return 0.0, emissions
        for sequence in emissions:
            self._generate(sequence)
        return self._duration_s(spent, decoding), emissions

    def _prefill(self, budget: int, now_s: float) -> int:
        """Spend the budget on prompts, oldest first; return the tokens spent."""
        spent = 0
        for sequence in self._prompts(now_s):
            chunk = min(sequence.prompt_tokens - sequence.prefilled, budget - spent)
            sequence.prefilled += chunk
            spent += chunk
            if sequence.prefilled < sequence.prompt_tokens:
                self._partial = sequence
                break
            self.prompt_tokens_total += sequence.prompt_tokens
            if spent == budget or self.profile.serial_prefill:
                break
        return spent

    def _prompts(self, now_s: float) -> Iterator[Sequence]:
        """The prompt left half done, then those that can be admitted, one at a time."""
        if self._partial is not None:
            partial, self._partial = self._partial, None
            yield partial
        while self._waiting and len(self._running) < self.profile.max_num_seqs:
            sequence = next(iter(self._waiting))
            blocks = self._blocks(sequence)
            if self._kv_blocks + blocks > self.profile.kv_blocks:
                return
            del self._waiting[sequence]
            self._running[sequence] = None
            self._kv_blocks += blocks
            self.admitted_total += 1
            self.queue_time_s_total += now_s - sequence.arrived_s
            yield sequence

    def _generate(self, sequence: Sequence) -> None:
        if not sequence.done:
            before = self._blocks(sequence)
            sequence.generated += 1
            self.generation_tokens_total += 1
            self._kv_blocks += self._blocks(sequence) - before
        if sequence.done:
            self._finished.append(sequence)

    def _duration_s(self, prefill_tokens: int, decoding: int) -> float:
        profile = self.profile
        prefill_s = prefill_tokens / profile.prefill_tokens_per_s
        if profile.serial_prefill and prefill_tokens:
            return prefill_s
        return profile.step_base_s + prefill_s + decoding * profile.step_s_per_stream

    def _retire(self) -> None:
        for sequence in self._finished:
            if sequence in self._running:
                self._release(sequence)
                self.finished_total += 1
        self._finished.clear()

    def _release(self, sequence: Sequence) -> None:
        del self._running[sequence]
        self._kv_blocks -= self._blocks(sequence)
        assert self._kv_blocks >= 0
        if sequence is self._partial:
            self._partial = None

    def _blocks(self, sequence: Sequence) -> int:
        """KV blocks a sequence holds: those of its whole prompt from admission on."""
        return -(-(sequence.prompt_tokens + sequence.generated) // self.profile.block_tokens)
