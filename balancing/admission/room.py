"""Whether one backend has room for one more request.

Our own leases decide, because a scrape comes too late.

**The window.** A prompt that waits in an engine can be put in no order any more. So an engine gets
no more than WINDOW_S of prefill beforehand: enough for the way there and back, and for prompts to
share a step. In virtual time a window of 0.25 s gave no more tokens a second than 0.1 s, and
urgent requests came 0.35 s later (bench/history/2026-11-admission.md, C). At least one prompt has
room always.

**The slots.** Beyond so many streams requests wait in the engine, too (`slots`).

**The cache** has a file of its own (`cache_room`).

**Slow streams of a higher class.** Long prompts wait beside them (`long_pace`).
"""

from collections.abc import Collection
from math import exp, inf
from typing import Final

from penstock.balancing.admission.cache_room import CacheRoom
from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.long_pace import LongPace
from penstock.balancing.admission.reserve import Reserve
from penstock.balancing.admission.slots import STUCK_S, STUCK_TIMES, Slots, kept_places
from penstock.balancing.admission.spread import Spread
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease
from penstock.balancing.prefill_speed import work_of

WINDOW_S: Final = 0.1
# But not less than the time of so many steps. With many long streams a step takes long, and prompts
# in it cost little. With 180 cached beginnings of 6,144 tokens on four engines, at twice their
# capacity, 50 instead of 35 good answers a second (bench/history/2026-11-admission.md, "Warm
# prompts").
WINDOW_STEPS: Final = 4.0
# The engine works for long on a prompt, or a list of prompts, that takes more than this.
LONG_S: Final = 0.5
# Streams with a longer time between tokens are slow. Where 0.1 s a token is the goal, it is soon
# missed then: other prompts follow ("Long prompts beside streams of a higher class" in
# bench/history/2026-11-admission.md).
SLOW_GAP_S: Final = 0.04
# Measured speeds may be far too low at first. A step has room for this much prefill work.
WINDOW_WORK_MIN: Final = 2_048.0
# The time constant of the time between tokens.
GAP_TAU_S: Final = 1.0


class Room:
    """The requests at one backend, and what is left there."""

    __slots__ = (
        "_events",
        "_sampled_s",
        "_slots",
        "_stream_s",
        "backend",
        "beside_work",
        "cache",
        "gap_s",
        "giants",
        "long_pace",
        "sequences",
        "taken",
        "tickets",
        "wanted",
        "window_s",
    )

    def __init__(
        self,
        backend: Backend,
        spread: Spread,
        window_s: float | None = None,
        flows: Collection[str] = (),
        reserve: Reserve | None = None,
    ) -> None:
        """`spread`: of all answers of the pool. `window_s`: how much prefill it gets beforehand.
        None: what is usual. `flows`: all that have come to the pool. `reserve`: what its classes
        leave to higher ones."""
        self.window_s = window_s
        self.backend = backend
        self._slots = Slots()
        self.wanted = 0  # requests that wait, and that the policy would send here
        self.giants = 0  # requests that may fill the engine by themselves
        self.sequences = 0  # that the engine runs of all requests, each choice on its own
        self.tickets: dict[Lease, Ticket] = {}
        self.cache = CacheRoom(backend, spread, self.tickets, flows, reserve or Reserve())
        # Prefill of what is never held back (embeddings): it keeps nobody else waiting.
        self.beside_work = 0
        # How many requests take it for long, by flow: giants, and long prompts not prefilled yet.
        self.taken: dict[Flow, int] = {}
        self.gap_s = 0.0  # between two tokens of a stream, when it was sampled last
        self.long_pace = LongPace()
        self._stream_s = 0.0  # the time that streams were open, added up, and their tokens
        self._events = 0.0
        self._sampled_s = -inf

    def add(self, lease: Lease, ticket: Ticket) -> None:
        """It is sent here."""
        self.tickets[lease] = ticket
        ticket.answer_tokens = ticket.flow.expect(lease.ask)
        self.cache.add(lease, ticket)
        self.sequences += _sequences(lease)
        ticket.giant = self.cache.is_giant(ticket.flow, lease.ask)
        self.giants += ticket.giant
        # By all of it. `queued_work` counts less of it after prompts whose client has left.
        work = _work(lease.ask, lease.cached_tokens)
        if lease.ask.engine and self._takes_long(work):
            if lease.began_s - self._sampled_s > GAP_TAU_S:
                self.begin_samples(lease.began_s)
            prefill_s = work * self.backend.prefill_speed.work_s
            ticket.long = self.long_pace.sent(ticket.rank, prefill_s, lease.began_s)
        if ticket.long is not None or ticket.giant:
            self.taken[ticket.flow] = self.taken.get(ticket.flow, 0) + 1
        if not lease.ask.generates:
            ticket.beside_work = lease.queued_work
            self.beside_work += ticket.beside_work

    def lack(self, ticket: Ticket, ask: Ask, now_s: float) -> Lack | None:
        """Why there is no room for this request now. None: there is."""
        if not self.takes_prompts():
            if self.backend.full:
                return Lack.REQUESTS
            return Lack.SEQUENCES if self._runs_most else Lack.PROMPTS
        return self.cache.lack(ticket.flow, ask, now_s, self.cache.left_share(ticket, now_s))

    @property
    def _runs_most(self) -> bool:
        return self.sequences >= self._slots.most

    def is_taken_beside(self, flow: Flow) -> bool:
        """Whether another flow than this takes it for long."""
        return len(self.taken) > (flow in self.taken)

    def requests_of(self, flow: Flow) -> int:
        """How many requests of a flow are here."""
        return sum([each.flow is flow for each in self.tickets.values()])

    def spares_none(self, flow: Flow) -> bool:
        """Whether the last sequences are left to others: this flow has some of its own here."""
        kept = kept_places(self._slots.most)
        if self.sequences < self._slots.most - kept:
            return False
        mine = [_sequences(lease) for lease, each in self.tickets.items() if each.flow is flow]
        return sum(mine) >= kept

    @property
    def mean_prompt_tokens(self) -> float:
        """Of the requests here."""
        tokens = sum([lease.ask.prompt_tokens for lease in self.tickets])
        return tokens / max(1, len(self.tickets))

    def takes_prompts(self) -> bool:
        """Whether the engine would begin with a new prompt in time."""
        backend = self.backend
        if backend.full or self._runs_most:
            return False
        return self._begins_in_time(backend.queued_work - self.beside_work)

    def _begins_in_time(self, work: float) -> bool:
        """Whether the engine would begin with a new prompt in time after so much prefill work."""
        if work < WINDOW_WORK_MIN:
            return True
        seconds = work * self.backend.prefill_speed.work_s
        if self.window_s is not None:
            return seconds < self.window_s
        return seconds < WINDOW_S or seconds < WINDOW_STEPS * self.cache.step_s

    def lack_beside(self, ask: Ask) -> Lack | None:
        """Why the engine would not begin in time with what needs no room in its cache."""
        if self.backend.full:
            return Lack.REQUESTS
        return None if not ask.engine or self._begins_in_time(self.beside_work) else Lack.PROMPTS

    def is_long(self, ask: Ask) -> bool:
        """Whether the engine would work on its prompts for long."""
        if not ask.engine or not self._takes_long(_work(ask, 0)):
            return False
        return self._takes_long(_work(ask, self.backend.cache.cached_tokens(ask)))

    def spares_streams(self, rank: int, ask: Ask, now_s: float) -> bool:
        """Whether this prompt would slow streams of a class above `rank` that are slow already.

        A stream whose client does not read does not count: it may be there for as long as that
        client likes.
        """
        if not rank or not self.long_pace.runs(now_s) or not self.is_long(ask):
            return False
        work = _work(ask, self.backend.cache.cached_tokens(ask))
        own_s = work * self.backend.prefill_speed.work_s
        if not self.long_pace.holds_back(rank, own_s, now_s) or self._gap_s(now_s) <= SLOW_GAP_S:
            return False
        for lease, ticket in self.tickets.items():
            reads = lease.ask.stream and lease.first_token_s is not None and not lease.held_up
            if ticket.rank < rank and reads:
                return True
        return False

    def _takes_long(self, work: float) -> bool:
        return work > WINDOW_WORK_MIN and work * self.backend.prefill_speed.work_s > LONG_S

    def prefilled(self, lease: Lease) -> None:
        """Its prompt is held now, also by others that found the same beginning in the cache."""
        ticket = self.tickets.get(lease)
        if ticket is not None:
            self._end_prompt(ticket)
            self.cache.prefilled(lease, ticket)
            if lease.first_token_s is not None and self.long_pace.runs(lease.first_token_s):
                self._measure(lease.first_token_s)  # it is a stream from now on
                ticket.sampled_tokens = max(1, lease.generated_tokens)

    def remove(self, lease: Lease, now_s: float) -> Ticket | None:
        """It has ended. Returns its ticket, None if it was sent without one."""
        ticket = self.tickets.pop(lease, None)
        if ticket is None:
            return None
        self.cache.remove(lease, ticket, now_s)
        self.sequences -= _sequences(lease)
        if ticket.long is not None:
            self.long_pace.left(ticket.rank, ticket.long, lease.began_s, now_s)
        self._end_prompt(ticket)
        if ticket.giant:
            self.giants -= 1
            self._give_back(ticket.flow)
        return ticket

    def _end_prompt(self, ticket: Ticket) -> None:
        self.beside_work -= ticket.beside_work
        ticket.beside_work = 0
        if ticket.long is not None:
            ticket.long = None
            if not ticket.giant:
                self._give_back(ticket.flow)

    def _give_back(self, flow: Flow) -> None:
        """One that took it for long does so no more."""
        self.taken[flow] -= 1
        if not self.taken[flow]:
            del self.taken[flow]

    def begin_samples(self, now_s: float) -> None:
        """Requests begin to wait, or a long prompt is sent: only what comes from now on tells the
        time between tokens. While a long prompt is still being spaced, this goes on."""
        if self.long_pace.runs(now_s):
            return
        self._stream_s = self._events = self.gap_s = 0.0
        self._sampled_s = now_s
        for lease, ticket in self.tickets.items():
            ticket.sampled_tokens = lease.generated_tokens

    def sample(self, now_s: float) -> None:
        """Measure the time between tokens, and see whether prompts are stuck.

        Call it now and then, while requests wait.
        """
        self._measure(now_s)
        self.gap_s = self._stream_s / self._events if self._events else 0.0
        self.look_for_slots(now_s)

    def _measure(self, now_s: float) -> None:
        """Add up what the streams have shown since the last time."""
        self._stream_s, self._events = self._shown(now_s)
        self._sampled_s = now_s
        for lease, ticket in self.tickets.items():
            if lease.first_token_s is not None and lease.ask.stream and not lease.held_up:
                ticket.sampled_tokens = lease.generated_tokens

    def slept(self, time_s: float) -> None:
        """The process did not run for this long: streams may have had tokens meanwhile."""
        self._sampled_s += time_s

    def _gap_s(self, now_s: float) -> float:
        """The time between two tokens of a stream, as it is now. 0.0: not known."""
        stream_s, events = self._shown(now_s)
        return stream_s / events if events else 0.0

    def _shown(self, now_s: float) -> tuple[float, float]:
        """The time that streams were open lately, added up, and their tokens.

        Both are added up apart: a short look sees no step, or one too many. Each choice is a stream
        of its own. Those whose clients do not read, or did not, show nothing of the backend.
        """
        if self._sampled_s == -inf:
            return 0.0, 0.0
        passed_s = now_s - self._sampled_s
        streams = tokens = 0
        for lease, ticket in self.tickets.items():
            shows = lease.first_token_s is not None and lease.ask.stream and not lease.held_up
            if shows and ticket.sampled_tokens:
                streams += _sequences(lease)
                tokens += lease.generated_tokens - ticket.sampled_tokens
        fade = exp(-passed_s / GAP_TAU_S)
        return self._stream_s * fade + passed_s * streams, self._events * fade + tokens

    def look_at_report(self, now_s: float) -> None:
        """Look for that if a new report says that requests wait in the engine."""
        report = self.backend.report
        if report is not None and report.waiting and report is not self._slots.report:
            self.look_for_slots(now_s)

    def look_for_slots(self, now_s: float) -> None:
        """See whether prompts are stuck because the engine runs as many streams as it can.

        The oldest one may be stuck for another reason. It is too long for what the cache has free.
        Or the engine has set it aside, for a grammar to compile, say. Then later ones overtake it.
        """
        oldest: Lease | None = None
        for lease in self.tickets:
            waits = lease.ask.stream and lease.ask.generates and lease.first_token_s is None
            if waits and not lease.overtaken and (oldest is None or lease.began_s < oldest.began_s):
                oldest = lease
        stuck_s = inf
        report = self.backend.report
        if oldest is not None and (
            report is None or report.surely_had_room(oldest.ask.prompt_tokens)
        ):
            work = max(self._work_since(oldest.began_s), self.backend.queued_work)
            work_s = work * self.backend.prefill_speed.work_s
            since_s = oldest.began_s + STUCK_S + STUCK_TIMES * work_s
            stuck_s = since_s if since_s < now_s else inf
        self._slots.look(report, stuck_s, now_s, self.sequences)

    def _work_since(self, began_s: float) -> float:
        """Of all prompts that the engine has worked on since then, or has not begun with.

        As if it found none of them in its cache: it may not have what we expect there.
        """
        work = 0.0
        for lease in self.tickets:
            if lease.first_token_s is None or lease.first_token_s > began_s:
                work += _work(lease.ask, 0)
        return work


def _work(ask: Ask, cached_tokens: int) -> float:
    """Of its prompts, as far as they are not cached."""
    return work_of(ask.prompt_tokens - cached_tokens, ask.prompt_tokens / ask.prompts, ask.prompts)


def _sequences(lease: Lease) -> int:
    """How many the engine runs of it at once."""
    return lease.ask.prompts * lease.ask.choices if lease.ask.generates else 0
