"""One request's claim on one backend: the only thing that changes a load.

`begin` reserves the prompt as queued prefill; each first token turns a prompt's
share into held decode tokens; `end` gives everything back, on every path, and
may run twice. Invariant: the leases of a backend sum up to its load, so no
lease means all zeros.
"""

from enum import StrEnum

from balancing.ask import Ask
from balancing.backend import Backend, Load
from balancing.prefill_speed import work_of


class Reason(StrEnum):
    """Why this backend: what `x-penstock-reason` says."""

    COST = "cost"  # the policy preferred it
    ONLY = "only"  # no other could serve
    AFFINITY = "affinity"  # the own backend of its session, or of the response that it refers to
    SPILL = "spill"  # its session's own was unfit, over its bound or tried already


class Lease:
    """Tokens held at `backend` for `ask`, from choice to end."""

    __slots__ = (
        "_ahead_work",
        "_held_at_first",
        "_held_tokens",
        "_retry",
        "_streaming",
        "_unseen",
        "_work_at_first",
        "ask",
        "backend",
        "began_s",
        "bound",
        "cached_tokens",
        "ended",
        "expected_tokens",
        "first_token_s",
        "generated_tokens",
        "queued_tokens",
        "queued_work",
        "reason",
        "sound",
    )

    def __init__(
        self,
        backend: Backend,
        ask: Ask,
        now_s: float,
        reason: Reason = Reason.COST,
        *,
        bound: bool = False,
        retry: bool = False,
    ) -> None:
        """`bound`: only this backend holds what is asked for; `retry`: another's engine failed."""
        self.backend = backend
        self.bound = bound
        self.sound = backend.fit  # not a last resort
        self._retry = retry
        self.ask = ask
        self.began_s = now_s
        self.reason = reason
        self.first_token_s: float | None = None
        self.generated_tokens = 0
        self.ended = False
        self.expected_tokens = backend.expected_tokens(ask, now_s)
        self.cached_tokens = int(self.expected_tokens * backend.hits.ratio)
        self.queued_tokens = self.queued_work = 0  # without an engine nothing is prefilled
        if ask.engine:
            self.queued_tokens = ask.prompt_tokens - self.cached_tokens
            context = ask.prompt_tokens / ask.prompts
            self.queued_work = max(1, round(work_of(self.queued_tokens, context, ask.prompts)))
        self._held_tokens = 0
        self._streaming = False
        # The backend's, when the first token came.
        self._held_at_first = 0
        self._work_at_first = 0
        # Prompts whose first token has not been seen, by index.
        self._unseen = set(range(ask.prompts)) if ask.prompts > 1 else {0}
        self._ahead_work = backend.wait_work(now_s) + self.queued_work
        own = backend.own
        own.queued_work += self.queued_work
        own.queued_prefill_tokens += self.queued_tokens
        own.requests += 1
        own.engine_requests += ask.prompts * ask.choices
        own.retries += retry
        own.sequence += 1
        backend.awaited_hits += self.expected_tokens
        backend.requests_total += 1
        backend.taken_tokens += ask.prompt_tokens
        if ask.blocks:
            backend.prefixes.use(ask.blocks)
        if ask.engine:
            backend.begin_prefill(self, now_s)

    @property
    def whole_work(self) -> float:
        """Its prompts' prefill if nothing of them were cached."""
        ask = self.ask
        return work_of(ask.prompt_tokens, ask.prompt_tokens / ask.prompts, ask.prompts)

    @property
    def silent(self) -> bool:
        """Whether the answer will show no first token before it is whole, yet has decode."""
        return self.ask.generates and not self.ask.stream

    @property
    def prefilling(self) -> bool:
        """Whether some prompt still waits for its first token."""
        return bool(self._unseen)

    def first_token(self, now_s: float, index: int = 0) -> None:
        """The choice `index` has begun: its prompt's share is prefilled.

        With k prompts and n choices vLLM numbers choices prompt by prompt, so
        choice i belongs to prompt i // n. Indexes out of range are ignored.
        """
        if self.ended:
            return
        if self.ask.engine:
            self.backend.progress += 1
        if self.first_token_s is None:
            self.first_token_s = now_s
            elapsed_s = now_s - self.began_s
            self.backend.latency.observe(elapsed_s, now_s)
            if self.ask.stream and self.ask.generates and self.ask.engine:
                self.backend.refresh(now_s)
                self.backend.prefill_speed.observe(self._ahead_work, elapsed_s)
        prompt = index // self.ask.choices
        if prompt in self._unseen:
            self._unseen.remove(prompt)
            share = min(self.queued_tokens, self.ask.prompt_tokens // self.ask.prompts)
            self._prefilled(share if self._unseen else self.queued_tokens, now_s)

    def assume_prefilled(self, now_s: float) -> None:
        """No first token was seen (a plain JSON answer): prefill is over by the clock."""
        if not self.ended and self._unseen:
            self._unseen.clear()
            self._prefilled(self.queued_tokens, now_s)

    def _prefilled(self, tokens: int, now_s: float) -> None:
        own = self.backend.own
        held = tokens if self._unseen else tokens + self.cached_tokens
        work = self.queued_work
        if self._unseen and self.queued_tokens:
            work = work * tokens // self.queued_tokens
        self.queued_tokens -= tokens
        self.queued_work -= work
        self._held_tokens += held
        own.queued_work -= work
        own.queued_prefill_tokens -= tokens
        own.active_decode_tokens += held
        self.backend.prefilled_work += work
        if not self._streaming:
            self._streaming = True
            own.streams += 1
            self._proved(own)
        own.sequence += 1
        assert own.queued_prefill_tokens >= 0
        if not self._unseen:
            self._held_at_first = own.active_decode_tokens
            self._work_at_first = self.backend.prefilled_work
            self.backend.end_prefill(self, now_s)

    def _proved(self, own: Load) -> None:
        """A retry that has its first token, or has ended, is none any more."""
        own.retries -= self._retry
        self._retry = False

    def tokens(self, count: int) -> None:
        """`count` more tokens were generated and are held in the KV cache."""
        if self.ended or not count:
            return
        self.generated_tokens += count
        self._held_tokens += count
        self.backend.progress += 1
        own = self.backend.own
        own.active_decode_tokens += count
        own.sequence += 1

    def end(self, now_s: float) -> None:
        """Give everything back. Idempotent; nothing counts after it."""
        if self.ended:
            return
        self.ended = True
        self.backend.end_prefill(self, now_s)
        self.backend.awaited_hits -= self.expected_tokens
        own = self.backend.own
        own.queued_prefill_tokens -= self.queued_tokens
        own.queued_work -= self.queued_work
        own.active_decode_tokens -= self._held_tokens
        own.requests -= 1
        own.engine_requests -= self.ask.prompts * self.ask.choices
        if self._streaming:
            own.streams -= 1
        self._proved(own)
        own.sequence += 1
        assert own.queued_prefill_tokens >= 0
        assert own.queued_work >= 0
        assert own.active_decode_tokens >= 0
        assert own.streams >= 0
        assert own.requests >= 0
        assert own.engine_requests >= 0
        assert own.retries >= 0

    def complete(self, now_s: float, completion_tokens: int = 0) -> None:
        """End with a whole answer: what an engine finished ends a run of failures.

        `completion_tokens` as the backend counted them, where it did.
        """
        if not self.ended and self.ask.engine and self.first_token_s is not None:
            self.backend.failures_in_row = 0
            if self.ask.prompts == self.ask.choices == 1:
                if self.ask.stream:
                    self._decoded(now_s - self.first_token_s, completion_tokens)
                elif self.ask.generates and completion_tokens:
                    self.backend.refresh(now_s)
                    self._answered(now_s - self.began_s, completion_tokens)
        self.end(now_s)

    def _answered(self, seconds: float, completion_tokens: int) -> None:
        """Learn from a plain answer, which shows only how long it took in all.

        Whatever that differs from what was expected is shared between prefill and decode in
        proportion: right where an engine is slower in both, and mixed requests part the rest.
        """
        prefill, decode = self.backend.prefill_speed, self.backend.decode_speed
        held = self.backend.own.active_decode_tokens
        prefill_s = self._ahead_work * prefill.work_s + prefill.step_s
        decode_s = completion_tokens * decode.itl_s(held)
        share = seconds / (prefill_s + decode_s)
        prefill.observe(self._ahead_work, share * prefill_s)
        decode.observe(completion_tokens, share * decode_s, 0.0, held)

    def settle(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        """The prompt as the backend counted it, and what it found in its cache, where it tells."""
        # Of the prompt as it was: how far its estimate was off is not the cache's fault.
        expected = self.expected_tokens * prompt_tokens // self.ask.prompt_tokens
        if cached_tokens is None:
            self.backend.untold_hits += expected
            return
        self.backend.told_hits += cached_tokens
        if expected:
            self.backend.hits.observe(expected, cached_tokens)

    def _decoded(self, seconds: float, completion_tokens: int) -> None:
        """Learn from a whole stream how fast the backend decodes."""
        backend = self.backend
        work = backend.prefilled_work - self._work_at_first
        held = (self._held_at_first + backend.own.active_decode_tokens) / 2
        steps = (completion_tokens or self.generated_tokens) - 1
        backend.decode_speed.observe(steps, seconds, work * backend.prefill_speed.work_s, held)

    def fail(
        self,
        now_s: float,
        *,
        suspicious: bool = True,
        penal: bool = True,
        doubtful: bool = False,
        hint_s: float = 0.0,
    ) -> bool:
        """End, and count the failure against the backend.

        `suspicious`: as one in a row; `penal`: it makes the backend look busy, for
        `hint_s` where that is given; `doubtful`: only if it is not the first in a row,
        since the request itself may be the cause. Returns whether it speaks of the
        backend as it is now: a request that began before the last return does not,
        however late it breaks.
        """
        backend = self.backend
        current = self.began_s >= backend.back_since_s
        if not self.ended:
            backend.failures_total += suspicious or penal
            if suspicious and current:
                if not backend.failures_in_row:
                    backend.failing_since_s = now_s
                backend.failures_in_row += 1
            if penal and current and not (doubtful and backend.failures_in_row < 2):
                backend.penalty.charge(now_s, in_row=backend.failures_in_row, hint_s=hint_s)
        self.end(now_s)
        return current

    def turned_away(self, now_s: float, hint_s: float) -> None:
        """It was answered that there is too much work: no failure, but a sample of load."""
        self.backend.penalty.charge(now_s, hint_s=hint_s)
