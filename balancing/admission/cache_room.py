"""Whether the KV cache of one backend has room for one more request.

An engine whose cache runs over stops a stream and computes it anew later. So a prompt is sent only
if what all streams there hold should fit until they end (`kv_peak`). That gave 4 to 7 % more tokens
a second, and hardly any stream was stopped (bench/history/2026-11-admission.md, C). And it is sent
only if its flow's answers could not outgrow that by too much (`exposure`).

The engine's own metrics tell only how large the cache is: what it holds comes too late.
"""

from collections.abc import Collection, Mapping
from math import inf
from typing import Final

from penstock.balancing.admission.exposure import Exposure, most_tokens
from penstock.balancing.admission.held_blocks import HeldBlocks
from penstock.balancing.admission.kv_peak import Stream, spare_tokens, steps_until
from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.pinned import Pinned
from penstock.balancing.admission.reserve import Holdings, Reserve
from penstock.balancing.admission.spread import Spread
from penstock.balancing.admission.ticket import Flow, Ticket
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease

# A request with so many choices is a giant if they may take a larger share of the cache than that,
# or if there are more of them than most engines run at once (vLLM's default was 256).
GIANT_SEQUENCES: Final = 8
GIANT_SHARE: Final = 0.75
SEQUENCES_MAX: Final = 256
# A cache that no report has told of yet is taken for one so small. Else lists that come right after
# the start fill every engine.
UNTOLD_TOKENS: Final = 100_000
# No request's answers count for more than this share of a cache. An engine with less room computes
# the choices of one request one after another.
ANSWER_SHARE: Final = 0.25
# In the rule on growth (`may_grow`) each choice counts up to that, and all choices of a request
# together up to this.
ANSWERS_SHARE: Final = 0.5
# What an engine holds beyond what is known counts up to this share of its cache.
UNKNOWN_SHARE: Final = 0.25
# So long after somebody found no room a cache is short of it.
SHORT_S: Final = 1.0
# Of a class's share of a cache each other flow counts for so much at most. So a tenant whose
# answers never end leaves the others a half.
FLOW_PART: Final = 0.5
# A prompt of more than this share of a cache leaves so much of the rest to higher classes at most.
LARGE_SHARE: Final = 0.5
REST_PART: Final = 0.5


class CacheRoom:
    """What the requests at one backend hold of its cache, and will."""

    __slots__ = (
        "_all",
        "_at",
        "_backend",
        "_blocks",
        "_exposure",
        "_flows",
        "_holdings",
        "_pinned",
        "_plain",
        "_reserve",
        "_short_until_s",
        "_spare",
        "_tickets",
        "most_tokens",
        "short",
    )

    def __init__(
        self,
        backend: Backend,
        spread: Spread,
        tickets: Mapping[Lease, Ticket],
        flows: Collection[str],
        reserve: Reserve,
    ) -> None:
        """`spread`: of all answers of the pool. `tickets`: of the requests that are there now.
        `flows`: all that have come to the pool. `reserve`: what classes leave to higher ones."""
        self._flows = flows
        self._reserve = reserve
        self._backend = backend
        self._all = spread
        self._tickets = tickets
        self._exposure = Exposure()
        self._short_until_s = -inf
        self.short = False  # somebody found no room since this was set back
        self.most_tokens = 0.0  # the most that may be left of all answers
        self._plain = 0  # answers that are not streamed: nobody sees how long they are yet
        self._blocks = HeldBlocks()  # of prompts that are prefilled
        # The moment, load, answer and size for which `_spare` was found.
        self._at = (-1.0, -1, 0.0, 0)
        self._spare = 0.0
        self._holdings = Holdings(tickets)
        self._pinned = Pinned(backend, self._blocks)

    def add(self, lease: Lease, ticket: Ticket) -> None:
        """It is sent there."""
        flow = ticket.flow
        most = ANSWER_SHARE * self._capacity or inf
        ticket.most_tokens = self._most(flow, lease.ask, most)
        self.most_tokens += ticket.most_tokens
        ticket.exposed_tokens = self._exposed_tokens(flow, lease.ask)
        self._exposure.add(flow, ticket.exposed_tokens, lease.began_s)
        self._plain += _is_plain(lease)
        # The engine keeps them for it from now on, unless it may refuse it.
        if lease.cached_tokens and lease.ask.likely == 1.0:
            self._pinned.add(ticket, max(0, lease.ask.prompt_tokens - lease.queued_tokens))
            self._hold(lease, ticket)

    def is_giant(self, flow: Flow, ask: Ask) -> bool:
        """Whether its prompts or choices may fill the engine, so that others wait for a place."""
        sequences = ask.prompts * ask.choices
        if sequences < GIANT_SEQUENCES or not ask.engine:
            return False
        untold = UNTOLD_TOKENS if self._backend.report is None else 0
        share = GIANT_SHARE * (self._capacity or untold)
        if ask.generates and sequences > SEQUENCES_MAX:
            return True
        return bool(share and ask.prompt_tokens + most_tokens(flow, ask) > share)

    def prefilled(self, lease: Lease, ticket: Ticket) -> None:
        """Its prompt is held now. Others that begin alike hold that beginning with it."""
        self._pinned.remove(ticket)
        self._hold(lease, ticket)

    def _hold(self, lease: Lease, ticket: Ticket) -> None:
        if lease.ask.blocks and not ticket.holds and lease.ask.prompts == 1:
            ticket.holds = True
            self._blocks.add(lease.ask)

    def remove(self, lease: Lease, ticket: Ticket, now_s: float) -> None:
        """It has ended."""
        self._pinned.remove(ticket)
        self.most_tokens -= ticket.most_tokens
        self._plain -= _is_plain(lease)
        earned = min(ticket.answer_tokens, lease.generated_tokens)
        self._exposure.remove(ticket.flow, ticket.exposed_tokens, earned, now_s)
        if ticket.holds:
            ticket.holds = False
            self._blocks.remove(lease.ask)
        if not self._tickets:
            self.most_tokens = 0.0  # no rounding stays

    def fits(self, flow: Flow, ask: Ask, now_s: float, reserve: float = 0.0) -> bool:
        """Whether the KV cache has room for such a prompt and its answer, as far as is known."""
        return self.lack(flow, ask, now_s, reserve) is None

    def lack(self, flow: Flow, ask: Ask, now_s: float, reserve: float = 0.0) -> Lack | None:
        """Why it has none. Changes nothing. None: it has room.

        `reserve`: the share of the cache that stays free beside it, for higher classes.
        """
        capacity = self._capacity
        if not capacity or not self._tickets:
            return None
        most = ANSWER_SHARE * capacity
        if ask.prompt_tokens + min(most, flow.expect(ask)) > capacity:
            return None  # not even an empty cache has room: what it reports is no measure of this
        if not self.may_grow(flow, ask, now_s, reserve):
            return Lack.ANSWERS
        capacity = int(capacity * (1.0 - reserve))
        backend = self._backend
        held = backend.active_decode_tokens + backend.queued_prefill_tokens
        held += self._pinned.tokens + self._unseen_tokens(now_s) - int(self._unheld_tokens(now_s))
        answers = self.most_tokens + self._most(flow, ask, most)
        needed = self._needed_tokens(ask, now_s)
        free = capacity - held - needed
        if free >= 0.0 and len(self._flows) > 1 and self._crowds(flow, free, now_s):
            return Lack.ANSWERS
        if held + needed + answers <= capacity:
            return None
        spare = self._spare_tokens(flow, ask, capacity, now_s)
        return None if needed <= spare else Lack.KV_CACHE

    def _crowds(self, flow: Flow, free: float, now_s: float) -> bool:
        """Whether its answers may take by surprise what others need. `free`: left of the cache."""
        generated = sum([lease.generated_tokens for lease in self._tickets])
        return self._exposure.crowds(flow, free, float(generated), now_s)

    def found(self, lack: Lack, flow: Flow, ask: Ask, now_s: float) -> None:
        """A request of this flow waits for that."""
        if lack is Lack.KV_CACHE:
            self.short = True
            self._short_until_s = now_s + SHORT_S
        if lack is Lack.KV_CACHE or lack is Lack.ANSWERS:
            self._exposure.look(flow, now_s)
        if lack is Lack.ANSWERS:
            self._exposure.keep(flow, self._exposed_tokens(flow, ask), now_s)

    def left_share(self, ticket: Ticket, now_s: float) -> float:
        """The share of the cache that it leaves to higher classes.

        Nothing, if its class is owed its share of the tokens and has not that share of this cache.
        A prompt that takes most of the cache leaves a part of the rest at most.
        """
        if ticket.owed:
            share_tokens = ticket.owed * self._capacity
            at = self._backend.own.sequence
            held = self._holdings.of(ticket.rank, at, self._shared_tokens(now_s))
            others = [
                min(tokens, FLOW_PART * share_tokens)
                for flow, tokens in held.items()
                if flow is not ticket.flow
            ]
            if held.get(ticket.flow, 0.0) + sum(others) < share_tokens:
                return 0.0
        left, ask, capacity = self._reserve.of(ticket), ticket.ask, self._capacity
        if not left or not capacity or ask.prompt_tokens <= LARGE_SHARE * capacity:
            return left
        # Otherwise a few tokens of a higher class would keep out what takes the rest of a cache.
        tokens = ask.prompt_tokens + min(ANSWER_SHARE * capacity, ticket.flow.expect(ask))
        return min(left, max(0.0, 1.0 - tokens / capacity) * REST_PART)

    def may_grow(self, flow: Flow, ask: Ask, now_s: float, reserve: float = 0.0) -> bool:
        """Whether its flow may have one more such answer here. Else it waits for its own ones."""
        capacity = self._capacity
        if not capacity or not self._tickets:
            return True
        exposed_tokens = self._exposed_tokens(flow, ask)
        return self._exposure.allows(flow, exposed_tokens, int(capacity * (1.0 - reserve)), now_s)

    def _exposed_tokens(self, flow: Flow, ask: Ask) -> float:
        """What its answers may come to, as far as that counts."""
        capacity = self._capacity
        tokens = most_tokens(flow, ask)
        if not capacity:
            return tokens
        sequences = ask.prompts * ask.choices
        return min(tokens, ANSWER_SHARE * capacity * sequences, ANSWERS_SHARE * capacity)

    def _needed_tokens(self, ask: Ask, now_s: float) -> float:
        """What its prompt adds to what is held. Streams may hold its beginning already.

        Without blocks, the share of it that is held is taken to be that of all streams' tokens.
        """
        if ask.blocks:
            return ask.prompt_tokens - self._blocks.tokens_of(ask)
        share = self._unheld_share(now_s)
        if not share:
            return ask.prompt_tokens
        return ask.prompt_tokens - min(
            self._backend.cache.cached_tokens(ask), share * ask.prompt_tokens
        )

    def shared_tokens(self, ask: Ask) -> float:
        """How much of its prompt streams hold already."""
        return self._blocks.tokens_of(ask)

    def is_short(self, now_s: float) -> bool:
        """Whether somebody found no room of late."""
        return now_s < self._short_until_s

    def likely_wait_s(self, ticket: Ticket, ask: Ask, now_s: float) -> float:
        """How long it is likely to wait until streams have ended that hold what it needs.

        A guess on the low side, since any stream may end at once. Too high a guess would refuse
        requests that could be served.
        """
        missing = self._missing_tokens(ticket, ask, now_s)
        if not missing:
            return 0.0
        own = ask.prompt_tokens + min(ANSWER_SHARE * self._capacity, ticket.flow.expect(ask))
        back = sum([given / max(1.0, steps) for steps, given in self._ends(now_s)])  # in each step
        # What is short beside its own comes back by itself: many answers end sooner than expected.
        return min(own, missing) / max(1.0, back) * self.step_s

    def own_wait_s(self, ticket: Ticket, ask: Ask, before: int, now_s: float) -> float:
        """How long it is likely to wait for its flow's own answers. `before`: so many of that flow
        wait already. 0.0 if it need not."""
        reserve = self.left_share(ticket, now_s)
        if not self._capacity or self.may_grow(ticket.flow, ask, now_s, reserve):
            return 0.0
        ends = [
            steps
            for (steps, _), each in zip(self._ends(now_s), self._tickets.values(), strict=True)
            if each.flow is ticket.flow
        ]
        if not ends:  # it waits for the answers of others
            ends = [steps for steps, _ in self._ends(now_s)]
        return sum(ends) / len(ends) * self.step_s * (before + 1) / len(ends)

    def sure_wait_s(self, ticket: Ticket, ask: Ask, now_s: float) -> float:
        """How long it waits, as `likely_wait_s`, if each stream has its expected length.

        Who waits for less goes where it costs far more. (Long answers of a published trace, at 0.95
        of capacity: the p99 of first tokens was 4.0 s with this one and 5.1 s with the other.)
        """
        missing = self._missing_tokens(ticket, ask, now_s)
        return steps_until(self._ends(now_s), missing) * self.step_s if missing else 0.0

    def _missing_tokens(self, ticket: Ticket, ask: Ask, now_s: float) -> float:
        """How much of the cache must come back before it fits. 0.0 if it fits."""
        capacity, reserve = self._capacity, self.left_share(ticket, now_s)
        if not capacity or self.fits(ticket.flow, ask, now_s, reserve):
            return 0.0
        spare = self._spare_tokens(ticket.flow, ask, int(capacity * (1.0 - reserve)), now_s)
        return max(1.0, self._needed_tokens(ask, now_s) - spare)

    def _unseen_tokens(self, now_s: float) -> int:
        """What plain answers have of the cache by now, by the clock."""
        if not self._plain:
            return 0
        return int(sum([each.unseen_tokens(now_s) for each in self._tickets if _is_plain(each)]))

    def _ends(self, now_s: float) -> list[tuple[float, float]]:
        """Of each stream, in how many steps it ends, and what it gives back then."""
        return [
            (left / (each.ask.prompts * each.ask.choices), left + held)
            for each, (left, held) in zip(self._tickets, self._streams(now_s), strict=True)
        ]

    @property
    def step_s(self) -> float:
        """The time of a step of the engine, which makes a token of each stream."""
        return self._backend.decode_speed.itl_s(self._backend.active_decode_tokens)

    @property
    def _capacity(self) -> int:
        """The tokens that the KV cache holds. 0: nobody knows."""
        report = self._backend.report
        return (report.kv_tokens or 0) if report is not None else 0

    def _most(self, flow: Flow, ask: Ask, most: float) -> float:
        """The most that may be left of an answer at any moment, as far as it counts."""
        spread = flow.spread if flow.spread.known else self._all
        return min(most, flow.expect(ask) * spread.longest)

    def _spare_tokens(self, flow: Flow, ask: Ask, capacity: int, now_s: float) -> float:
        """The longest prompt that fits. Kept for the moment: many may ask."""
        new_left = min(ANSWER_SHARE * self._capacity, flow.left_tokens(ask, 0, self._all))
        at = (now_s, self._backend.own.sequence, new_left, capacity)
        if self._at != at:
            remote = self._backend.remote
            others = remote.active_decode_tokens + remote.queued_prefill_tokens
            capacity += int(self._unheld_tokens(now_s)) - others
            self._spare = spare_tokens(self._streams(now_s), new_left, capacity)
            self._at = at
        return self._spare

    def _unheld_tokens(self, now_s: float) -> float:
        """What is counted for streams and not held, because prompts share it.

        Negative if the engine holds more than is known.
        """
        # The report counts what plain answers have by now, too.
        unknown = max(0.0, self._unknown_tokens(now_s) - self._unseen_tokens(now_s))
        return self._shared_tokens(now_s) - unknown

    def _shared_tokens(self, now_s: float) -> float:
        """What is counted for more than one stream.

        Our own count knows long beginnings. The engine's last report knows short ones, too.
        """
        share = self._unheld_share(now_s)
        return max(self._blocks.shared_tokens, share * self._backend.active_decode_tokens)

    def _unknown_tokens(self, now_s: float) -> float:
        """What the engine holds beyond what is known of it: prompts were estimated too low."""
        backend = self._backend
        if not backend.unknown_tokens or backend.report is None:
            return 0.0
        unknown = self._pinned.unknown_tokens * backend.report.freshness(now_s)
        return min(unknown, UNKNOWN_SHARE * self._capacity)

    def _unheld_share(self, now_s: float) -> float:
        backend = self._backend
        if not backend.unheld_share or backend.report is None:
            return 0.0
        return backend.unheld_share * backend.report.freshness(now_s)

    def _streams(self, now_s: float) -> list[Stream]:
        """The tokens to come and held of all requests here."""
        most = ANSWER_SHARE * self._capacity
        streams = []
        for each, ticket in self._tickets.items():
            tokens = each.generated_tokens
            if self._plain and _is_plain(each):
                tokens = int(each.unseen_tokens(now_s))
            left_tokens = min(most, ticket.flow.left_tokens(each.ask, tokens, self._all))
            streams.append((left_tokens, float(each.ask.prompt_tokens + tokens)))
        return streams


def _is_plain(lease: Lease) -> bool:
    """Whether its answer comes in one piece."""
    return lease.ask.generates and not lease.ask.stream
