"""Whether one backend has room for one more request: in its next step, and in its KV cache.

Our own leases decide, because a scrape comes too late. Scrapes tell only how large the cache is.

**The window.** A prompt that waits in an engine can be put in no order any more. So an engine gets
no more than WINDOW_S of prefill beforehand: enough for the way there and back, and for prompts to
share a step. In virtual time a window of 0.25 s gave no more tokens a second than 0.1 s, and
urgent requests came 0.35 s later (bench/history/2026-11-admission.md, C). At least one prompt has
room always.

**The cache.** An engine whose cache runs over stops a stream and computes it anew later. So a
prompt is sent only if what all streams there hold should fit until they end (`kv_peak`). That gave
4 to 7 % more tokens a second, and hardly any stream was stopped (the same tables, C).
"""

from math import exp, inf
from typing import Final

from penstock.balancing.admission.exposure import Exposure, most_tokens
from penstock.balancing.admission.kv_peak import Stream, spare_tokens, steps_until
from penstock.balancing.admission.spread import Spread
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease

WINDOW_S: Final = 0.1
# Measured speeds may be far too low at first. A step has room for this much prefill work.
WINDOW_WORK_MIN: Final = 2_048.0
# No request's answers count for more than this share of a cache. An engine with less room computes
# the choices of one request one after another.
ANSWER_SHARE: Final = 0.25
# The time constant of the time between tokens.
GAP_TAU_S: Final = 1.0


class Room:
    """The requests at one backend, and what is left there."""

    __slots__ = (
        "_all",
        "_at",
        "_events",
        "_exposure",
        "_shared",
        "_shared_tokens",
        "_spare",
        "_stream_s",
        "backend",
        "beside_work",
        "gap_s",
        "most_tokens",
        "short",
        "tickets",
    )

    def __init__(self, backend: Backend, spread: Spread) -> None:
        self.backend = backend
        self._all = spread  # of all answers of the pool
        self._exposure = Exposure()
        self.tickets: dict[Lease, Ticket] = {}
        # Prefill of what is never held back (embeddings): it keeps nobody else waiting.
        self.beside_work = 0
        self.short = False  # somebody found no room in the cache since this was set back
        self.most_tokens = 0.0  # the most that may be left of all answers
        # Prompts with a common beginning hold it once. By the last block of that beginning: how
        # many hold it, and its tokens. And the tokens that are counted more than once.
        self._shared: dict[int, tuple[int, int]] = {}
        self._shared_tokens = 0
        # The moment, load, answer and size for which `_spare` was found.
        self._at = (-1.0, -1, 0.0, 0)
        self._spare = 0.0
        self.gap_s = 0.0  # between two tokens of a stream, while requests wait
        self._stream_s = 0.0  # the time that streams were open, added up, and their tokens
        self._events = 0.0

    def add(self, lease: Lease, ticket: Ticket) -> None:
        """It is sent here."""
        self.tickets[lease] = ticket
        flow = ticket.flow
        ticket.answer_tokens = flow.expect(lease.ask)
        most = ANSWER_SHARE * self._capacity or inf
        ticket.most_tokens = self._most(flow, lease.ask, most)
        self.most_tokens += ticket.most_tokens
        ticket.exposed_tokens = min(most, most_tokens(flow, lease.ask))
        self._exposure.add(flow, ticket.exposed_tokens, lease.began_s)
        if not lease.ask.generates:
            ticket.beside_work = lease.queued_work
            self.beside_work += ticket.beside_work

    def takes(self, ticket: Ticket, ask: Ask, now_s: float) -> bool:
        """Whether there is room for this request now."""
        return self.takes_prompts() and self.fits(ticket.flow, ask, now_s, ticket.reserve)

    def takes_prompts(self) -> bool:
        """Whether the engine would begin with a new prompt in time."""
        backend = self.backend
        work = backend.queued_work - self.beside_work
        return work < WINDOW_WORK_MIN or work * backend.prefill_speed.work_s < WINDOW_S

    def fits(self, flow: Flow, ask: Ask, now_s: float, reserve: float = 0.0) -> bool:
        """Whether the KV cache has room for such a prompt and its answer, as far as is known.

        `reserve`: the share of the cache that stays free beside it, for higher classes.
        """
        capacity = self._capacity
        if not capacity or not self.tickets:
            return True
        most = ANSWER_SHARE * capacity
        if ask.prompt_tokens + min(most, flow.expect(ask)) > capacity:
            return True  # not even an empty cache has room: what it reports is no measure of this
        capacity = int(capacity * (1.0 - reserve))
        exposed_tokens = min(most, most_tokens(flow, ask))
        if not self._exposure.allows(flow, exposed_tokens, capacity, now_s):
            return False
        backend = self.backend
        held = backend.active_decode_tokens + backend.queued_prefill_tokens - self._shared_tokens
        answers = self.most_tokens + self._most(flow, ask, most)
        if held + ask.prompt_tokens + answers <= capacity:
            return True
        spare = self._spare_tokens(flow, ask, capacity, now_s)
        self.short = self.short or ask.prompt_tokens > spare
        return ask.prompt_tokens <= spare

    def cache_wait_s(self, ticket: Ticket, ask: Ask, now_s: float) -> float:
        """How long until streams here have ended that hold what it needs of the cache."""
        capacity = self._capacity
        if not capacity or self.fits(ticket.flow, ask, now_s, ticket.reserve):
            return 0.0
        spare = self._spare_tokens(ticket.flow, ask, int(capacity * (1.0 - ticket.reserve)), now_s)
        ends = [
            (left / (each.ask.prompts * each.ask.choices), left + held)
            for each, (left, held) in zip(self.tickets, self._streams(), strict=True)
        ]
        steps = steps_until(ends, max(1.0, ask.prompt_tokens - spare))
        return steps * self.backend.decode_speed.itl_s(self.backend.active_decode_tokens)

    @property
    def _capacity(self) -> int:
        """The tokens that the KV cache holds. 0: nobody knows."""
        report = self.backend.report
        return (report.kv_tokens or 0) if report is not None else 0

    def _most(self, flow: Flow, ask: Ask, most: float) -> float:
        """The most that may be left of an answer at any moment, as far as it counts."""
        spread = flow.spread if flow.spread.known else self._all
        return min(most, flow.expect(ask) * spread.longest)

    def _spare_tokens(self, flow: Flow, ask: Ask, capacity: int, now_s: float) -> float:
        """The longest prompt that fits. Kept for the moment: many may ask."""
        new_left = min(ANSWER_SHARE * self._capacity, flow.left_tokens(ask, 0, self._all))
        at = (now_s, self.backend.own.sequence, new_left, capacity)
        if self._at != at:
            remote = self.backend.remote
            others = remote.active_decode_tokens + remote.queued_prefill_tokens
            capacity += self._shared_tokens - others
            self._spare = spare_tokens(self._streams(), new_left, capacity)
            self._at = at
        return self._spare

    def _streams(self) -> list[Stream]:
        """The tokens to come and held of all requests here."""
        most = ANSWER_SHARE * self._capacity
        streams = []
        for each, ticket in self.tickets.items():
            tokens = each.generated_tokens
            left_tokens = min(most, ticket.flow.left_tokens(each.ask, tokens, self._all))
            streams.append((left_tokens, float(each.ask.prompt_tokens + tokens)))
        return streams

    def prefilled(self, lease: Lease) -> None:
        """Its prompt is held now, also by others that found the same beginning in the cache."""
        ticket = self.tickets.get(lease)
        if ticket is not None and ticket.beside_work:
            self.beside_work -= ticket.beside_work
            ticket.beside_work = 0
        if ticket is None or ticket.shared_tokens or not lease.cached_tokens:
            return
        ask = lease.ask
        blocks = min(len(ask.blocks), round(lease.cached_tokens / ask.block_tokens))
        if not blocks:
            return
        ticket.shared_block, ticket.shared_tokens = ask.blocks[blocks - 1], lease.cached_tokens
        count, tokens = self._shared.get(ticket.shared_block, (0, ticket.shared_tokens))
        self._shared[ticket.shared_block] = count + 1, tokens
        if count:
            self._shared_tokens += tokens

    def remove(self, lease: Lease, now_s: float) -> Ticket | None:
        """It has ended. Returns its ticket, None if it was sent without one."""
        ticket = self.tickets.pop(lease, None)
        if ticket is None:
            return None
        self.most_tokens -= ticket.most_tokens
        earned = min(ticket.answer_tokens, lease.generated_tokens)
        self._exposure.remove(ticket.flow, ticket.exposed_tokens, earned, now_s)
        self.beside_work -= ticket.beside_work
        if ticket.shared_tokens:
            self._unshare(ticket)
        if not self.tickets:
            self.most_tokens = 0.0  # no rounding stays
            self._shared_tokens = 0
        return ticket

    def _unshare(self, ticket: Ticket) -> None:
        count, tokens = self._shared[ticket.shared_block]
        if count > 1:
            self._shared[ticket.shared_block] = count - 1, tokens
            self._shared_tokens -= tokens
        else:
            del self._shared[ticket.shared_block]
        ticket.shared_tokens = 0

    def begin_samples(self) -> None:
        """Requests begin to wait: only what comes from now on tells the time between tokens."""
        self._stream_s = self._events = self.gap_s = 0.0
        for lease, ticket in self.tickets.items():
            ticket.sampled_tokens = lease.generated_tokens

    def sample(self, passed_s: float) -> None:
        """Measure the time between tokens. Call it now and then, while requests wait.

        Times and tokens are added up apart: a short look sees no step, or one too many. Streams
        whose clients do not read, or did not, show nothing of the backend.
        """
        streams = tokens = 0
        for lease, ticket in self.tickets.items():
            if lease.first_token_s is not None and not lease.held_up and lease.ask.stream:
                if ticket.sampled_tokens:
                    streams += 1
                    tokens += lease.generated_tokens - ticket.sampled_tokens
                ticket.sampled_tokens = lease.generated_tokens
        fade = exp(-passed_s / GAP_TAU_S)
        self._stream_s = self._stream_s * fade + passed_s * streams
        self._events = self._events * fade + tokens
        self.gap_s = self._stream_s / self._events if self._events else 0.0
