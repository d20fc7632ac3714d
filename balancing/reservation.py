"""What one request takes of a backend's load: nothing else changes a load.

The prompt is queued prefill first. Each first token turns its prompt's share into held decode
tokens. The end gives everything back. Invariant: the reservations at a backend add up to its load,
so without any all counters are zero.
"""

from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.load import Load
from penstock.balancing.prefill_queue import QueuedPrompts
from penstock.balancing.prefix_cache.cache import CacheClaim

# No engine prefills this many times faster than was measured or assumed. Work that seems to be
# done faster was in its cache, or is no text for it.
TOO_FAST: Final = 4.0


class Reservation(QueuedPrompts):
    """Tokens reserved at `backend` for `ask`. A `Lease` is one with times and an end."""

    __slots__ = (
        "_aside",
        "_beside_tokens",
        "_claim",
        "_held_at_first",
        "_held_tokens",
        "_kept_bytes",
        "_retry",
        "_streaming",
        "_uncorrected",
        "_unseen",
        "_work_at_first",
        "backend",
        "began_s",
        "ended",
        "generated_tokens",
        "held_up",
    )

    def __init__(self, backend: Backend, ask: Ask, now_s: float, *, retry: bool) -> None:
        """`retry`: another backend's engine failed the request before."""
        claim = CacheClaim(backend.cache, ask) if ask.blocks else None
        super().__init__(ask, claim.cached_tokens if claim is not None else 0)
        self._claim = claim
        self.backend = backend
        self.began_s = now_s
        self.ended = False
        self.generated_tokens = 0
        # True if its time says nothing about the backend alone: its work is unknown, or its client
        # may have aimed it. A client that chose where slow requests go could make a backend slow.
        self.held_up = ask.likely < 1.0
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
