"""One request's claim on one backend: nothing else changes a load.

A new lease reserves the prompt as queued prefill. Each first token turns its prompt's share into
held decode tokens. The end gives everything back, on every path, and may happen twice. Invariant:
the leases of a backend add up to its load, so without leases all counters are zero.
"""

from enum import StrEnum
from typing import Final

from penstock.balancing.accusers import Cause
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.cache_claim import CacheClaim
from penstock.balancing.charges import add_to_run, charge
from penstock.balancing.decode_speed import prior_s as decode_prior_s
from penstock.balancing.load import Load
from penstock.balancing.prefill_speed import prior_s as prefill_prior_s
from penstock.balancing.queued_prompts import QueuedPrompts

# Speculative decoding gives up to eight tokens a step. An engine may send only every tenth event.
TOKENS_AT_ONCE_MAX: Final = 16
# If the reported prompt is more than twice or less than half the estimate, and differs by more than
# a chat template, the engine has done other work than was thought.
OFF_TOKENS: Final = 512
# No engine prefills this many times faster than was measured or assumed. Work that seems to be
# done faster was in its cache, or is no text for it.
TOO_FAST: Final = 4.0


class Reason(StrEnum):
    """Why this backend was chosen. `x-penstock-reason` shows it."""

    COST = "cost"  # the policy preferred it
    ONLY = "only"  # no other backend could serve
    AFFINITY = "affinity"  # it is the backend of the session, or of the stored response
    SPILL = "spill"  # the session's own backend was not fit, over its bound or tried already


class Lease(QueuedPrompts):
    """Tokens held at `backend` for `ask`, from the choice to the end."""

    __slots__ = (
        "_ahead_work",
        "_beside_tokens",
        "_claim",
        "_held_at_first",
        "_held_tokens",
        "_held_up",
        "_kept_bytes",
        "_prefill_s",
        "_retry",
        "_streaming",
        "_unseen",
        "_work_at_first",
        "backend",
        "began_s",
        "bound",
        "ended",
        "first_token_s",
        "generated_tokens",
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
        aimed: bool = False,
        retry: bool = False,
    ) -> None:
        """`bound`: only this backend holds what is asked for. `aimed`: but another could have
        served such a request. `retry`: another backend's engine failed the request before."""
        claim = CacheClaim(backend.cache, ask) if ask.blocks else None
        super().__init__(ask, claim.cached_tokens if claim is not None else 0)
        self._claim = claim
        self.backend = backend
        self.bound = bound
        self.sound = backend.fit  # healthy, not a last resort
        self._retry = retry
        self.began_s = now_s
        self.reason = reason
        self.first_token_s: float | None = None
        self.generated_tokens = 0
        self.ended = False
        # Tokens of the prompt that will be held but were not queued.
        self._beside_tokens = self.cached_tokens
        if ask.likely < 1.0:
            self._beside_tokens = ask.prompt_tokens - self.queued_tokens
        self._held_tokens = 0
        self._kept_bytes = 0
        # True if its time says nothing about the backend alone: its work is unknown, or its client
        # may have aimed it. A client that chose where slow requests go could make a backend slow.
        self._held_up = aimed or ask.likely < 1.0
        self._streaming = False
        # The work of a prompt that nobody has counted is a guess, which a client may mislead. So
        # the speed is learnt only when the whole answer reports the count.
        self._prefill_s = 0.0
        # Values of the backend when the first token came.
        self._held_at_first = 0
        self._work_at_first = 0
        # Indexes of the prompts whose first token has not been seen.
        self._unseen = set(range(ask.prompts)) if ask.prompts > 1 else {0}
        self._ahead_work = backend.wait_work(now_s) + self.queued_work
        own = backend.own
        own.queued_work += self.queued_work
        own.queued_prefill_tokens += self.queued_tokens
        own.requests += 1
        own.engine_requests += ask.prompts * ask.choices
        if retry:
            own.retries += 1
            backend.retrying[ask.client] = backend.retrying.get(ask.client, 0) + 1
        own.sequence += 1
        backend.requests_total += 1
        backend.taken_tokens += ask.prompt_tokens
        if ask.engine:
            backend.begin_prefill(self, now_s)

    @property
    def prefilling(self) -> bool:
        """Whether some prompt still waits for its first token."""
        return bool(self._unseen)

    def first_token(self, now_s: float, index: int = 0) -> None:
        """The choice `index` has begun, so its prompt is prefilled.

        With k prompts and n choices vLLM numbers the choices prompt by prompt. So choice i
        belongs to prompt i // n. Indexes out of range are ignored.
        """
        if self.ended:
            return
        if self.ask.engine:
            self.backend.progress += 1
        if self.first_token_s is None:
            self.first_token_s = now_s
            if self._claim is not None:
                if self._may_be_done(now_s) >= self.queued_work:
                    self._claim.computed()
                else:
                    self._claim.found()
            if self.ask.engine and not self._held_up:
                self.backend.latency.observe(now_s - self.began_s, now_s)
            self.backend.overtake(self, now_s)
        prompt = index // self.ask.choices
        several = self.ask.prompts > 1
        if several and self._unseen and not (self.ask.stream and self.ask.generates):
            self._unseen = {prompt}  # a whole answer belongs to all its prompts
        if prompt in self._unseen:
            self._unseen.remove(prompt)
            share = min(self.queued_tokens, self.ask.prompt_tokens // self.ask.prompts)
            self._prefilled(share if self._unseen else self.queued_tokens, now_s)
            # With several prompts the first token of one says little about the others.
            if not self._unseen and self._shows_prefill:
                self.backend.refresh(now_s)
                self._prefill_s = seconds = now_s - self.began_s
                slower = seconds / prefill_prior_s(self._ahead_work)
                self.backend.prefill_speed.recent.observe(slower, self.ask.client)

    @property
    def _shows_prefill(self) -> bool:
        """Whether the first token of each prompt is seen when the prompt is prefilled."""
        ask = self.ask
        return ask.engine and (ask.stream or not ask.generates) and not self._held_up

    def assume_prefilled(self, now_s: float) -> None:
        """End the prefill by the clock: a plain JSON answer shows no first token."""
        if not self.ended and self._unseen:
            self._unseen.clear()
            self._prefilled(self.queued_tokens, now_s)

    def _prefilled(self, tokens: int, now_s: float) -> None:
        own = self.backend.own
        held = tokens if self._unseen else tokens + self._beside_tokens
        work = self.queued_work
        if self._unseen and self.queued_tokens:
            work = work * tokens // self.queued_tokens
        self.queued_tokens -= tokens
        self.queued_work -= work
        self._held_tokens += held
        own.queued_work -= work
        own.queued_prefill_tokens -= tokens
        own.active_decode_tokens += held
        self.backend.prefilled_work += min(work, self._may_be_done(now_s))
        if not self._streaming:
            self._streaming = True
            own.streams += 1
            self._proved(own)
        own.sequence += 1
        assert own.queued_prefill_tokens >= 0
        if not self._unseen:
            self._held_at_first = self.backend.active_decode_tokens
            self._work_at_first = self.backend.prefilled_work
            self.backend.end_prefill(self, now_s)

    def _may_be_done(self, now_s: float) -> int:
        """The work that an engine can have prefilled since the request was sent."""
        elapsed_s = max(0.0, now_s - self.began_s)
        return 1 + int(TOO_FAST * elapsed_s / self.backend.prefill_speed.work_s)

    def _proved(self, own: Load) -> None:
        """End the retry: the request has its first token, or has ended."""
        if not self._retry:
            return
        self._retry = False
        own.retries -= 1
        retrying, client = self.backend.retrying, self.ask.client
        retrying[client] -= 1
        if not retrying[client]:
            del retrying[client]

    def tokens(self, count: int) -> None:
        """`count` more tokens were generated. The KV cache holds them."""
        if self.ended or not count:
            return
        self.generated_tokens += count
        self._held_tokens += count
        self.backend.progress += 1
        own = self.backend.own
        own.active_decode_tokens += count
        own.sequence += 1

    def keep(self, size_bytes: int) -> bool:
        """Hold back so many bytes of the answer. False when there is no room for them."""
        more_bytes = size_bytes - self._kept_bytes
        if more_bytes > 0 and self.ended:
            return False
        if more_bytes and not self.backend.kept.change(self.ask.client, more_bytes):
            return False
        self._kept_bytes = size_bytes
        return True

    def end(self, now_s: float) -> None:
        """Give everything back: the client has left, or nothing was sent. Idempotent."""
        if not self.ended:
            self.cut_short(now_s)
            self._give_back(now_s)

    def _give_back(self, now_s: float) -> None:
        """Give everything back. The lease counts no more after this."""
        if self._kept_bytes:
            self.keep(0)
        self.ended = True
        self.backend.end_prefill(self, now_s)
        if self._claim is not None:
            self._claim.end()
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

    def complete(self, now_s: float, completion_tokens: int = 0, prompt_tokens: int = 0) -> None:
        """End with a whole answer. An answer of an engine ends the backend's run of failures.

        The tokens are those that the backend reported, 0 for none.
        """
        if not self.ended and self.ask.engine and self.first_token_s is not None:
            if self._claim is not None:
                self._claim.complete(prompt_tokens)
            self.backend.accusers.clear()
            if self.ask.path not in self.backend.served:
                self.backend.has_served(self.ask.path)
            sure = not prompt_tokens or _is_near(prompt_tokens, self.ask.prompt_tokens)
            if self._prefill_s and sure:
                self.backend.prefill_speed.observe(
                    self._ahead_work, self._prefill_s, self.ask.client, now_s
                )
            if self.ask.prompts == self.ask.choices == 1 and not self._held_up:
                if not self.ask.generates:
                    pass  # all of it was prefill, which has been learnt
                elif self.ask.stream:
                    self._decoded(now_s - self.first_token_s, completion_tokens)
                elif completion_tokens and sure:
                    self.backend.refresh(now_s)
                    self._answered(now_s, completion_tokens)
        if not self.ended:
            self._give_back(now_s)

    def cut_short(self, now_s: float) -> None:
        """Learn from an answer that nobody waits for any more.

        Otherwise a backend so slow that clients give up would never be seen to be slow.
        """
        ask, backend = self.ask, self.backend
        if not ask.engine or self._held_up or ask.prompts * ask.choices > 1:
            return
        if self.first_token_s is not None:
            if ask.stream and ask.generates:
                self._decoded(now_s - self.first_token_s, 0)
            return
        prefill_s, decode_s = prefill_prior_s(self._ahead_work), 0.0
        if self.silent:
            held = backend.active_decode_tokens
            decode_s = (ask.max_tokens or ask.output_tokens) * decode_prior_s(held)
        slower = (now_s - self.began_s) / (prefill_s + decode_s)
        speed = backend.prefill_speed if prefill_s > decode_s else backend.decode_speed
        if speed.recent.is_news(slower):
            backend.refresh(now_s)
            speed.recent.observe(slower, ask.client)

    def _answered(self, now_s: float, completion_tokens: int) -> None:
        """Learn from a plain answer, which shows only its total time.

        What is known of one part tells the other one, better if that part is larger. An answer
        that is nearly all decoding teaches nothing about prefill.
        """
        backend, ask, seconds = self.backend, self.ask, now_s - self.began_s
        prefill, decode = backend.prefill_speed, backend.decode_speed
        # These tokens were not seen: believe no more than were allowed or than is plausible.
        most = round(TOKENS_AT_ONCE_MAX * ask.output_tokens)
        completion_tokens = min(completion_tokens, most)
        if ask.max_tokens:
            completion_tokens = min(completion_tokens, ask.max_tokens)
        held = (self._held_at_first + backend.active_decode_tokens) / 2
        others_s = (backend.prefilled_work - self._work_at_first) * prefill.work_s
        prefill_s = prefill.expect_s(self._ahead_work)
        decode_s = completion_tokens * decode.itl_s(held)
        prefill_usual_s = prefill_prior_s(self._ahead_work)
        decode_usual_s = completion_tokens * decode_prior_s(held)
        slower = max(0.1 * seconds, seconds - others_s) / (prefill_usual_s + decode_usual_s)
        recent = prefill.recent if prefill_usual_s > decode_usual_s else decode.recent
        recent.observe(slower, ask.client)
        if recent.is_odd(slower):
            return
        prefill.observe_whole(self._ahead_work, seconds, decode_s + others_s, ask.client, now_s)
        decode.observe_whole(completion_tokens, seconds, prefill_s + others_s, held)

    def settle(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        """Take the backend's counts: of the prompt, and of cached tokens if it reports them."""
        if self._claim is not None:
            self._claim.settle(prompt_tokens, cached_tokens)
        elif cached_tokens:
            self.backend.cache.told(cached_tokens)

    def held_up(self) -> None:
        """Its time says nothing about the backend: its client did not read, or the proxy slept."""
        self._held_up = True

    def _decoded(self, seconds: float, completion_tokens: int) -> None:
        """Learn from a stream how fast the backend decodes."""
        backend = self.backend
        work = backend.prefilled_work - self._work_at_first
        held = (self._held_at_first + backend.active_decode_tokens) / 2
        # One event may hold several tokens. The backend's own count is believed up to a factor.
        seen = self.generated_tokens
        steps = max(seen, min(completion_tokens, TOKENS_AT_ONCE_MAX * seen)) - 1
        others_s = work * backend.prefill_speed.work_s
        backend.decode_speed.observe(steps, seconds, others_s, held, self.ask.client)

    def fail(
        self,
        now_s: float,
        *,
        suspicious: bool = True,
        penal: bool = True,
        doubtful: bool = False,
        hint_s: float = 0.0,
        cause: Cause = Cause.BACKEND,
        fatal: bool = False,
    ) -> bool:
        """End, and count the failure against the backend.

        `suspicious`: it counts in the run of failures. `penal`: it costs a load penalty, for
        `hint_s` if given. `doubtful`: the request may be the cause, so the first in a row costs
        nothing. `cause`: something other than the backend that explains it; then it is not
        counted in the run. `fatal`: the engine may have died of it. Returns whether it says
        anything about the present backend. A request that began before the backend's last
        return does not.
        """
        backend = self.backend
        current = self.began_s >= backend.back_since_s
        if not self.ended:
            backend.failures_total += suspicious or penal
            if suspicious and current:
                add_to_run(backend, self.ask, now_s, cause, fatal=fatal)
            if penal and current and not (doubtful and backend.failures_in_row < 2):
                charge(backend, self.ask.client, now_s, cause, hint_s)
            self._give_back(now_s)
        return current


def _is_near(tokens: int, estimated: int) -> bool:
    return 2 * tokens >= estimated >= tokens / 2 or abs(tokens - estimated) <= OFF_TOKENS
