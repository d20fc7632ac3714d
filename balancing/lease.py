"""One request's claim on one backend, from the choice to the end, which may happen twice.

Nothing else changes a load. The prompt is queued prefill first. Each first token turns its prompt's
share into held decode tokens. The end gives everything back. Invariant: the leases at a backend add
up to its load, so without any all counters are zero.

Its times teach the backend's speeds, by whole answers and by those cut short, and its failures are
counted against the backend.
"""

from enum import StrEnum
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.load import Load
from penstock.balancing.outliers.failures import add_to_run, charge, leave_alone
from penstock.balancing.outliers.penalties import Cause
from penstock.balancing.prefill_queue import QueuedPrompts
from penstock.balancing.prefix_cache.cache import CacheClaim
from penstock.balancing.speed.estimates import DecodeSpeed, prior_decode_s, prior_prefill_s

# Speculative decoding gives up to eight tokens a step. An engine may send only every tenth event.
TOKENS_AT_ONCE_MAX: Final = 16
# An engine makes up to five tokens in a step (speculative decoding). An answer with more than so
# many times the tokens that were shown has hidden some.
HIDDEN_TIMES: Final = 5
# If the reported prompt is more than twice or less than half the estimate, and differs by more than
# a chat template, the engine has done other work than was thought.
OFF_TOKENS: Final = 512
# The longest plain answer that is charged for, if its client left and set no limit.
UNSEEN_TOKENS_MAX: Final = 32_768
ITL_MIN_S: Final = 0.001
# In less time after its first token an open stream tells nothing of its backend.
TOLD_S: Final = 2.0
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
    """Tokens reserved at `backend` for `ask`, and what its times and answer teach."""

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
        self.began_s = now_s
        self.bound = bound
        self.sound = backend.fit  # healthy, not a last resort
        self.reason = reason
        self.whole = False  # it ended with a whole answer
        # Prompt tokens that the engine computes. An estimate until the backend reports its counts.
        self.taken_tokens = self.queued_tokens
        self.first_token_s: float | None = None
        # The work of a prompt that nobody has counted is a guess, which a client may mislead. So
        # the speed is learnt only when the whole answer reports the count.
        self._prefill_s = 0.0
        self.ended = False
        self.generated_tokens = 0
        # True if its time says nothing about the backend alone: its work is unknown, or its client
        # may have aimed it. A client that chose where slow requests go could make a backend slow.
        self.held_up = aimed or ask.likely < 1.0
        self._retry = retry
        # Tokens of the prompt that will be held but were not queued.
        self._beside_tokens = self.cached_tokens
        if ask.likely < 1.0:
            self._beside_tokens = ask.prompt_tokens - self.queued_tokens
        self._held_tokens = 0
        self._kept_bytes = 0
        self._streaming = False
        self._aside = False
        # Values of the backend when the first token came.
        self._held_at_first = 0
        self._work_at_first = 0
        # Indexes of the prompts whose first token has not been seen.
        self._unseen = set(range(ask.prompts)) if ask.prompts > 1 else {0}
        self.ahead_work = backend.wait_work(now_s) + self.queued_work
        self._uncorrected = backend.queue.uncorrected
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
            backend.engine_requests_peak = max(backend.engine_requests_peak, own.engine_requests)
            speed = backend.prefill_speed
            backend.queue.begin(self, speed.work_s, now_s, measured=speed.samples > 0)

    @property
    def computed_share(self) -> float:
        """How much of what was thought new the engine computed, 0 to 1. The rest it had."""
        return self._claim.computed_share if self._claim is not None else 1.0

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
            self._first_of_all(now_s)
        prompt = index // self.ask.choices
        several = self.ask.prompts > 1
        if several and self._unseen and not (self.ask.stream and self.ask.generates):
            self._unseen = {prompt}  # a whole answer belongs to all its prompts
        if prompt in self._unseen:
            self._unseen.remove(prompt)
            share = min(self.queued_tokens, self.ask.prompt_tokens // self.ask.prompts)
            self._prefilled(share if self._unseen else self.queued_tokens, now_s)
            # With several prompts the first token of one says little about the others.
            # It is seen when the prompt is prefilled, if anything is shown then.
            ask = self.ask
            shows = ask.engine and (ask.stream or not ask.generates) and not self.held_up
            if not self._unseen and shows:
                self.backend.refresh(now_s)
                self._prefill_s = seconds = now_s - self.began_s
                slower = seconds / prior_prefill_s(self.ahead_work)
                self.backend.prefill_speed.recent.observe(slower, self.ask.client)

    def answering(self, now_s: float) -> None:
        """The stream has begun and shows no token yet, so its prompt waits in no queue.

        Those behind it did wait for it, so it leaves the queue as if it were prefilled: the work
        before them stays. Its first token is that of a model that has thought, and teaches nothing.
        """
        if self.ended or self.first_token_s is not None or not self.queued_work:
            return
        self.backend.queue.end(self, now_s)
        self.set_aside(now_s)

    def _first_of_all(self, now_s: float) -> None:
        backend = self.backend
        self.first_token_s = now_s
        if self._claim is not None:
            self._claim.first_token(too_soon=self._may_be_done(now_s) < self.queued_work)
        if self.ask.engine:
            backend.cold_start.served(now_s)
            backend.answered_s = now_s
            if backend.left_alone.until_s:
                backend.left_alone.answered(self.began_s)
            if not self.held_up:
                backend.latency.observe(now_s - self.began_s, now_s)
        backend.queue.overtake(self, now_s)
        if backend.queue.uncorrected != self._uncorrected:
            self.held_up = True  # the work before it is unknown

    def end(self, now_s: float) -> None:
        """Give everything back: the client has left, or nothing was sent. Idempotent."""
        if not self.ended:
            self.cut_short(now_s)
            self._give_back(now_s)

    def complete(self, now_s: float, completion_tokens: int = 0, prompt_tokens: int = 0) -> None:
        """End with a whole answer. An answer of an engine ends the backend's run of failures.

        The tokens are those that the backend reported, 0 for none.
        """
        if not self.ended and self.ask.engine and self.first_token_s is not None:
            if self._claim is not None:
                self._claim.complete(prompt_tokens)
            self.backend.accusers.clear()
            sure = not prompt_tokens or _is_near(prompt_tokens, self.ask.prompt_tokens)
            hides = self._hides_tokens(now_s, completion_tokens)
            if self._prefill_s and sure and not hides:
                self.backend.prefill_speed.observe(
                    self.ahead_work, self._prefill_s, self.ask.client, now_s
                )
            if self.ask.prompts == self.ask.choices == 1 and not self.held_up:
                if not self.ask.generates:
                    pass  # all of it was prefill, which has been learnt
                elif self.ask.stream:
                    self._decoded(now_s, 0 if hides else completion_tokens)
                elif completion_tokens and sure:
                    self.backend.refresh(now_s)
                    self._answered(now_s, completion_tokens)
        if not self.ended:
            self._is_whole(completion_tokens)
            self._give_back(now_s)

    def _hides_tokens(self, now_s: float, completion_tokens: int) -> bool:
        """Whether most tokens came before the first one that was shown: hidden thinking, or a call
        that a parser held back. Then its time to the first token is no time of prefill."""
        assert self.first_token_s is not None
        shown = HIDDEN_TIMES * max(1, self.generated_tokens)
        later = now_s - self.first_token_s < self._prefill_s
        return self.ask.generates and completion_tokens > shown and later

    def _is_whole(self, completion_tokens: int) -> None:
        """Take a plain answer's own count of its tokens, up to what is plausible."""
        self.whole, ask = True, self.ask
        if self.backend.occupancy is None or ask.stream:
            return
        most = round(TOKENS_AT_ONCE_MAX * ask.output_tokens) * ask.prompts * ask.choices
        self.generated_tokens = max(self.generated_tokens, min(completion_tokens, most))

    def cut_short(self, now_s: float) -> None:
        """Learn from an answer that nobody waits for any more.

        Otherwise a backend so slow that clients give up would never be seen to be slow.
        """
        ask, backend = self.ask, self.backend
        if not ask.engine or self.held_up or ask.prompts * ask.choices > 1:
            return
        if self.first_token_s is not None:
            if ask.stream and ask.generates:
                self._decoded(now_s, 0)
            return
        prefill_s, decode_s = prior_prefill_s(self.ahead_work), 0.0
        if self.silent:
            held = backend.active_decode_tokens
            decode_s = (ask.max_tokens or ask.output_tokens) * prior_decode_s(held)
        slower = (now_s - self.began_s) / (prefill_s + decode_s)
        speed = backend.prefill_speed if prefill_s > decode_s else backend.decode_speed
        if speed.recent.is_news(slower):
            backend.refresh(now_s)
            speed.recent.observe(slower, ask.client)

    def unseen_tokens(self, now_s: float) -> float:
        """What a plain answer that is given up may have generated: all that it had time for."""
        if not self.ask.generates or self.ask.stream:
            return 0.0
        return self.tokens_in(now_s - self.began_s)

    def tokens_in(self, seconds: float) -> float:
        """How many tokens its backend can make in this time, up to the limit of the answer."""
        ask, backend = self.ask, self.backend
        itl_s = max(ITL_MIN_S, backend.decode_speed.itl_s(backend.active_decode_tokens))
        most = ask.max_tokens or UNSEEN_TOKENS_MAX
        return min(most, max(0.0, seconds) / itl_s) * ask.prompts * ask.choices

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
        prefill_s = prefill.expect_s(self.ahead_work)
        decode_s = completion_tokens * decode.itl_s(held)
        prefill_usual_s = prior_prefill_s(self.ahead_work)
        decode_usual_s = completion_tokens * prior_decode_s(held)
        slower = max(0.1 * seconds, seconds - others_s) / (prefill_usual_s + decode_usual_s)
        recent = prefill.recent if prefill_usual_s > decode_usual_s else decode.recent
        recent.observe(slower, ask.client)
        if recent.is_odd(slower):
            return
        prefill.observe_whole(self.ahead_work, seconds, decode_s + others_s, ask.client, now_s)
        rest_s = prefill_s + others_s
        decode.observe_whole(completion_tokens, seconds, rest_s, held, ask.client, now_s)

    def settle(self, prompt_tokens: int, cached_tokens: int | None) -> None:
        """Take the backend's counts: of the prompt, and of cached tokens if it reports them."""
        if prompt_tokens and self.ask.engine:
            cached = self.cached_tokens if cached_tokens is None else cached_tokens
            self.taken_tokens = max(0, prompt_tokens - cached)
        if self._claim is not None and cached_tokens is not None:
            self._claim.settle(prompt_tokens, cached_tokens)

    def decode_pace(self, now_s: float) -> float:
        """How many times as long as the prior this open stream's tokens took so far. 0.0: it does
        not tell."""
        ask, began_s = self.ask, self.first_token_s
        plain = ask.engine and ask.stream and ask.generates and ask.prompts * ask.choices == 1
        if began_s is None or now_s < began_s + TOLD_S or self.held_up or not plain:
            return 0.0
        seconds, others_s, held = self._decoding(now_s)
        return DecodeSpeed.slower(max(1, self.generated_tokens - 1), seconds, others_s, held)

    def _decoded(self, now_s: float, completion_tokens: int) -> None:
        """Learn from a stream how fast the backend decodes."""
        seconds, others_s, held = self._decoding(now_s)
        # One event may hold several tokens. The backend's own count is believed up to a factor.
        seen = self.generated_tokens
        steps = max(seen, min(completion_tokens, TOKENS_AT_ONCE_MAX * seen)) - 1
        client, speed = self.ask.client, self.backend.decode_speed
        speed.observe(steps, seconds, others_s, held, client, now_s)

    def _decoding(self, now_s: float) -> tuple[float, float, float]:
        """The seconds since its first token, those of them that other prompts took, and the tokens
        that the backend held meanwhile."""
        assert self.first_token_s is not None
        backend = self.backend
        others_s = (backend.prefilled_work - self._work_at_first) * backend.prefill_speed.work_s
        held = (self._held_at_first + backend.active_decode_tokens) / 2
        return now_s - self.first_token_s, others_s, held

    def fail(
        self,
        now_s: float,
        *,
        suspicious: bool = True,
        penal: bool = True,
        doubtful: bool = False,
        busy_s: float | None = None,
        cause: Cause = Cause.BACKEND,
        fatal: bool = False,
    ) -> bool:
        """End, and count the failure against the backend.

        `suspicious`: it counts in the run of failures. `penal`: it costs a load penalty.
        `doubtful`: the request may be the cause, so the first in a row costs nothing. `busy_s`: the
        backend has too much to do, and says for how long; 0.0 if it does not say that. `cause`:
        something other than the backend that explains it; then it is not counted in the run.
        `fatal`: the engine may have died of it. Returns whether it says anything about the present
        backend. A request that began before the backend's last return does not.
        """
        backend = self.backend
        current = self.began_s >= backend.back_since_s
        if not self.ended:
            if suspicious or penal:
                backend.failed(None if cause is Cause.NO_REQUEST else self.ask.client)
            if suspicious and current:
                add_to_run(backend, self.ask, now_s, cause, fatal=fatal)
            if penal and current and not (doubtful and backend.failures_in_row < 2):
                charge(backend, self.ask.client, now_s, cause)
            if busy_s is not None and current:
                leave_alone(backend, self.ask.client, now_s, busy_s)
            self.taken_tokens = 0  # the next attempt takes them
            self._give_back(now_s, failed=suspicious or penal)
        return current

    # What it takes of the load ---------------------------------------------------------------

    @property
    def prefilling(self) -> bool:
        """Whether some prompt still waits for its first token."""
        return bool(self._unseen)

    def assume_prefilled(self, now_s: float) -> None:
        """End the prefill by the clock: a plain JSON answer shows no first token."""
        if not self.ended and self._unseen:
            self._unseen.clear()
            self._prefilled(self.queued_tokens, now_s)

    def set_aside(self, now_s: float) -> None:
        """Take the prompt out of the queue: its tokens may have come without being shown.

        So its first token tells nothing of the backend.
        """
        self.held_up = True
        self.leave_queue(now_s)

    def leave_queue(self, now_s: float) -> None:
        """Take the prompt out of the queue. It counts as held, as after its first token."""
        self._aside = True
        own = self.backend.own
        held = self.queued_tokens + self._beside_tokens
        self.backend.queue.drop(self, self.backend.prefill_speed.work_s, now_s)
        own.queued_work -= self.queued_work
        own.queued_prefill_tokens -= self.queued_tokens
        own.active_decode_tokens += held
        self._held_tokens += held
        self.queued_tokens = self.queued_work = self._beside_tokens = 0
        self._stream(own)
        self.backend.queue.end(self, now_s)
        if self.backend.occupancy is not None:
            self.backend.occupancy.prefilled(self, now_s)

    def _stream(self, own: Load) -> None:
        if not self._streaming:
            self._streaming = True
            own.streams += 1
        own.sequence += 1

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
        self._proved(own)
        self._stream(own)
        assert own.queued_prefill_tokens >= 0
        if not self._unseen:
            self._held_at_first = self.backend.active_decode_tokens
            self._work_at_first = self.backend.prefilled_work
            self.backend.queue.end(self, now_s)
            if self.backend.occupancy is not None and not self._aside:  # it was told then
                self.backend.occupancy.prefilled(self, now_s)

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

    def _give_back(self, now_s: float, *, failed: bool = False) -> None:
        """Give everything back. The lease counts no more after this. `failed`: as a failure."""
        if self.ask.engine or failed:
            self.backend.ended_for.add(self.ask.client)
        if self._kept_bytes:
            self.keep(0)
        self.ended = True
        if self.queued_work:
            self.backend.queue.drop(self, self.backend.prefill_speed.work_s, now_s)
        self.backend.queue.end(self, now_s)
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
        if self.backend.occupancy is not None:
            self.backend.occupancy.ended(self, now_s)


def _is_near(tokens: int, estimated: int) -> bool:
    return 2 * tokens >= estimated >= tokens / 2 or abs(tokens - estimated) <= OFF_TOKENS
