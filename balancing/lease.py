"""One request's claim on one backend: the only thing that changes a load.

`begin` reserves the prompt as queued prefill; each first token turns a prompt's
share into held decode tokens; `end` gives everything back, on every path, and
may run twice. Invariant: the leases of a backend sum up to its load, so no
lease means all zeros.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from balancing.accusers import Cause
from balancing.ask import Ask
from balancing.backend import Backend
from balancing.cache_claim import CacheClaim
from balancing.decode_speed import prior_s as decode_prior_s
from balancing.load import Load
from balancing.prefill_speed import prior_s as prefill_prior_s
from balancing.prefill_speed import work_of
from balancing.refusals import refuses_all, refuses_alone

# Speculative decoding gives up to eight tokens a step, and an engine may send every tenth only.
TOKENS_AT_ONCE_MAX: Final = 16
# Who counts a prompt more than twice as long as it was estimated, or not half, and by more than a
# chat template, has done other work than was thought.
OFF_TOKENS: Final = 512
# Nobody prefills so many times as fast as was measured, or thought before: what an engine is said
# to have done in less time was in its cache, or is no text to it.
TOO_FAST: Final = 4.0
# A row that something else explains is one failure to who asks when the backend began to fail.
EXPLAINED_S: Final = 60.0


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
        "_beside_tokens",
        "_claim",
        "_held_at_first",
        "_held_tokens",
        "_held_up",
        "_prefill_s",
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
        self._claim = CacheClaim(backend.cache, ask) if ask.blocks else None
        self.cached_tokens = self._claim.cached_tokens if self._claim is not None else 0
        self.queued_tokens = self.queued_work = 0  # without an engine nothing is prefilled
        if ask.engine:
            self.queued_tokens = ask.prompt_tokens - self.cached_tokens
            if ask.likely < 1.0:
                self.queued_tokens = max(1, int(self.queued_tokens * ask.likely))
            context = ask.prompt_tokens / ask.prompts
            self.queued_work = max(1, round(work_of(self.queued_tokens, context, ask.prompts)))
        # Of the prompt, what is held with it and was not queued.
        self._beside_tokens = self.cached_tokens
        if ask.likely < 1.0:
            self._beside_tokens = ask.prompt_tokens - self.queued_tokens
        self._held_tokens = 0
        # Whether its time is not the backend's alone, or nobody knows for how much work it was.
        self._held_up = ask.likely < 1.0
        self._streaming = False
        # Of a prompt that nobody has counted the work is a guess, which a client may mislead: the
        # speed is learnt once the answer is whole and tells.
        self._prefill_s = 0.0
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
        if retry:
            own.retries += 1
            backend.retrying[ask.client] = backend.retrying.get(ask.client, 0) + 1
        own.sequence += 1
        backend.requests_total += 1
        backend.taken_tokens += ask.prompt_tokens
        if ask.engine:
            backend.begin_prefill(self, now_s)

    @property
    def whole_work(self) -> float:
        """Its prompts' prefill if nothing of them were cached, and all of it is computed."""
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
            if self._claim is not None and self._may_be_done(now_s) >= self.queued_work:
                self._claim.computed()
            if self.ask.engine and not self._held_up:
                self.backend.latency.observe(now_s - self.began_s, now_s)
            self.backend.overtake(self, now_s)
        prompt = index // self.ask.choices
        several = self.ask.prompts > 1
        if several and self._unseen and not (self.ask.stream and self.ask.generates):
            self._unseen = {prompt}  # a whole answer is that of all its prompts
        if prompt in self._unseen:
            self._unseen.remove(prompt)
            share = min(self.queued_tokens, self.ask.prompt_tokens // self.ask.prompts)
            self._prefilled(share if self._unseen else self.queued_tokens, now_s)
            # Of several prompts the first token of one says little of what the others took.
            if not self._unseen and self._shows_prefill:
                self.backend.refresh(now_s)
                self._prefill_s = seconds = now_s - self.began_s
                slower = seconds / prefill_prior_s(self._ahead_work)
                self.backend.prefill_speed.recent.observe(slower, self.ask.client)

    @property
    def _shows_prefill(self) -> bool:
        """Whether the first token, of each prompt, comes when it is prefilled."""
        ask = self.ask
        return ask.engine and (ask.stream or not ask.generates) and not self._held_up

    def assume_prefilled(self, now_s: float) -> None:
        """No first token was seen (a plain JSON answer): prefill is over by the clock."""
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
            self._held_at_first = own.active_decode_tokens
            self._work_at_first = self.backend.prefilled_work
            self.backend.end_prefill(self, now_s)

    def _may_be_done(self, now_s: float) -> int:
        """Of its work, what an engine can have prefilled since it was sent."""
        elapsed_s = max(0.0, now_s - self.began_s)
        return 1 + int(TOO_FAST * elapsed_s / self.backend.prefill_speed.work_s)

    def _proved(self, own: Load) -> None:
        """A retry that has its first token, or has ended, is none any more."""
        if not self._retry:
            return
        self._retry = False
        own.retries -= 1
        retrying, client = self.backend.retrying, self.ask.client
        retrying[client] -= 1
        if not retrying[client]:
            del retrying[client]

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
        """Give everything back: its client has left, or nothing was sent. Idempotent."""
        if not self.ended:
            self.cut_short(now_s)
            self._give_back(now_s)

    def _give_back(self, now_s: float) -> None:
        """Nothing counts after it."""
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
        """End with a whole answer: what an engine finished ends a run of failures.

        Tokens as the backend counted them, where it did.
        """
        if not self.ended and self.ask.engine and self.first_token_s is not None:
            if self._claim is not None:
                self._claim.complete(prompt_tokens)
            self.backend.accusers.clear()
            if self.ask.path not in self.backend.served:
                self.backend.has_served(self.ask.path)
            sure = not prompt_tokens or _is_near(prompt_tokens, self.ask.prompt_tokens)
            if self._prefill_s and sure:
                self.backend.prefill_speed.observe(self._ahead_work, self._prefill_s)
            if self.ask.prompts == self.ask.choices == 1 and not self._held_up:
                if not self.ask.generates:
                    pass  # all of it was prefill, and taught that
                elif self.ask.stream:
                    self._decoded(now_s - self.first_token_s, completion_tokens)
                elif completion_tokens and sure:
                    self.backend.refresh(now_s)
                    self._answered(now_s - self.began_s, completion_tokens)
        if not self.ended:
            self._give_back(now_s)

    def cut_short(self, now_s: float) -> None:
        """Learn from an answer that nobody waits for any more.

        Or one so slow that its clients give up would never be seen to be slow.
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

    def _answered(self, seconds: float, completion_tokens: int) -> None:
        """Learn from a plain answer, which shows only how long it took in all.

        What is known of the one part tells the other, the better the larger that is: of an answer
        that is nearly all decoding, nothing is learnt of prefill.
        """
        backend, ask = self.backend, self.ask
        prefill, decode = backend.prefill_speed, backend.decode_speed
        # Nobody saw them: no more than were allowed, nor many times what such answers have.
        most = round(TOKENS_AT_ONCE_MAX * ask.output_tokens)
        completion_tokens = min(completion_tokens, most)
        if ask.max_tokens:
            completion_tokens = min(completion_tokens, ask.max_tokens)
        held = (self._held_at_first + backend.own.active_decode_tokens) / 2
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
        prefill.observe_whole(self._ahead_work, seconds, decode_s + others_s)
        decode.observe_whole(completion_tokens, seconds, prefill_s + others_s, held)

    def settle(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        """The prompt as the backend counted it, and what it found in its cache, where it tells."""
        if self._claim is not None:
            self._claim.settle(prompt_tokens, cached_tokens)
        elif cached_tokens:
            self.backend.cache.told(cached_tokens)

    def held_up(self) -> None:
        """Its client takes nothing, or the proxy slept: its time says nothing of the backend."""
        self._held_up = True

    def _decoded(self, seconds: float, completion_tokens: int) -> None:
        """Learn from a whole stream how fast the backend decodes."""
        backend = self.backend
        work = backend.prefilled_work - self._work_at_first
        held = (self._held_at_first + backend.own.active_decode_tokens) / 2
        # Several tokens may come at once; what a backend says of itself is believed so far.
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

        `suspicious`: as one in a row; `penal`: it makes the backend look busy, for
        `hint_s` where that is given; `doubtful`: only if it is not the first in a row,
        since the request itself may be the cause; `cause`: what else explains it, so that
        it is none of the row; `fatal`: the engine may have died of it. Returns whether it
        speaks of the backend as it is now: a request that began before the last return does
        not, however late it breaks.
        """
        backend = self.backend
        current = self.began_s >= backend.back_since_s
        if not self.ended:
            backend.failures_total += suspicious or penal
            if suspicious and current:
                self._count(now_s, cause, fatal)
            if penal and current and not (doubtful and backend.failures_in_row < 2):
                self._charge(now_s, cause, hint_s)
            self._give_back(now_s)
        return current

    def _count(self, now_s: float, cause: Cause, fatal: bool) -> None:
        """One more failure in a row, unless something else than the backend explains it."""
        backend = self.backend
        if cause is Cause.CLIENT or cause is Cause.KIND:
            first = not backend.failures_in_row and now_s - backend.failing_since_s > EXPLAINED_S
            if fatal and first:
                backend.failing_since_s = now_s
            return
        if not backend.failures_in_row:
            backend.failing_since_s = now_s
        backend.accusers.add(None if cause is Cause.NO_REQUEST else self.ask.client, self.ask.path)

    def _charge(self, now_s: float, cause: Cause, hint_s: float) -> None:
        """Make the backend dear: to this client alone, until another has met something too."""
        backend, client = self.backend, self.ask.client
        penalty = backend.penalty
        in_row = backend.failures_in_row
        if cause is Cause.NO_REQUEST:
            penalty.charge(now_s, in_row=in_row, hint_s=hint_s)
        elif cause is Cause.CLIENT:
            penalty.charge_for(client, now_s, hint_s=hint_s, explained=True)
        elif not penalty.charge_for(client, now_s, in_row=in_row, hint_s=hint_s):
            others = backend.accusers.others
            penalty.charge(now_s, in_row=in_row if others > 1 else others, hint_s=hint_s)

    def refused(self, now_s: float, peers: Sequence[Backend]) -> bool:
        """It got no answer. Returns whether several clients say so of this backend alone."""
        backend, client = self.backend, self.ask.client
        backend.refusals.add(client, backend.requests_total, now_s)
        beyond = refuses_all(backend, peers, now_s)
        if beyond:
            backend.penalty.charge(now_s, in_row=beyond)
            return True
        beyond = refuses_alone(backend, peers, client, now_s)
        if beyond:
            backend.penalty.charge_for(client, now_s, in_row=beyond)
        return False

    def turned_away(self, now_s: float, hint_s: float) -> None:
        """It was answered that there is too much work: no failure, but a sample of load."""
        self._charge(now_s, Cause.BACKEND, hint_s)


def _is_near(tokens: int, estimated: int) -> bool:
    return 2 * tokens >= estimated >= tokens / 2 or abs(tokens - estimated) <= OFF_TOKENS
