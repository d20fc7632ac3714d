"""Whether the KV cache of one backend has room for one more prompt and its answer.

**The peak.** Every stream grows by a token in each step until it ends, then gives back all that it
held. So the most that is held at once comes just before an end: the tokens of all that end later,
and one token a step for each of them until then. A prompt fits if that peak, with the expected
lengths of all answers, stays below the capacity. An engine whose cache runs over stops a stream and
computes it anew.

**Shared beginnings** count once, as the engine holds them. Every STRIDE-th block of a prompt is
counted. Estimates of the same text differ from client to client: what is held once counts as their
mean, and for a new prompt as its own estimate.

The engine's report tells the capacity, and what it holds beyond our own requests.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Final

from penstock.balancing.admission.queued_request import Charge
from penstock.balancing.admission.tenant_queue import TenantQueue
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import RECENT_S, EngineReport
from penstock.balancing.lease import Lease

# 640 tokens, and for the longest prompts 512 blocks to count.
STRIDE: Final = 4
# No request's answers count for more than this share of a cache. An engine with less room computes
# the choices of one request one after another.
ANSWER_SHARE: Final = 0.25
# What an engine holds beyond our own requests counts up to this share of its cache.
UNKNOWN_SHARE: Final = 0.25

Stream = tuple[float, float]  # tokens still to come, tokens held now


class KvCache:
    """The cache of one backend. `surprises`: for each tenant, how many more tokens its answers may
    have than expected."""

    def __init__(self, backend: Backend, charges: Mapping[Lease, Charge]) -> None:
        """`charges`: of the requests that are there now."""
        self._backend = backend
        self._charges = charges
        # By block: how many streams hold it, and the tokens since the counted one before it, as
        # estimated for each of them, added up.
        self._blocks: dict[Hashable, tuple[int, float]] = {}
        self.shared_tokens = 0.0  # those that are counted for more than one stream
        self._cached_tokens = 0  # of prompts that are not prefilled yet: the engine keeps them
        self._expected_tokens = 0.0  # of all answers
        self._plain = 0  # answers that are not streamed: nobody sees how long they are yet
        self._report: EngineReport | None = None  # for which this was found
        self._unknown_tokens = 0.0
        self._spare_of = (-1, 0.0, 0.0)  # for what `_spare` was found
        self._spare = 0.0
        self.surprises: dict[TenantQueue, float] = {}

    def capacity(self, now_s: float) -> int:
        """How many tokens the cache can hold. 0: unknown, or the report is old."""
        report = self._backend.report
        if report is None or now_s - report.at_s > RECENT_S:
            return 0
        return report.kv_tokens or 0

    # What is there ------------------------------------------------------------------------------

    def add(self, lease: Lease, charge: Charge) -> None:
        """A request is sent there."""
        self._expected_tokens += charge.answer_tokens
        self._plain += _is_plain(lease)
        charge.surprise_tokens = self.surprise(charge.tenant, lease.ask)
        if charge.surprise_tokens:
            before = self.surprises.get(charge.tenant, 0.0)
            self.surprises[charge.tenant] = before + charge.surprise_tokens
        # The engine keeps them for it from now on, unless it may refuse it.
        if lease.cached_tokens and lease.ask.likely == 1.0:
            charge.cached_tokens = lease.cached_tokens
            self._cached_tokens += charge.cached_tokens
            self._hold(lease.ask, charge)

    def prefilled(self, lease: Lease, charge: Charge) -> None:
        """Its prompt is held now, also by others that have the same beginning."""
        self._cached_tokens -= charge.cached_tokens
        charge.cached_tokens = 0
        self._hold(lease.ask, charge)

    def remove(self, lease: Lease, charge: Charge) -> None:
        """It has ended."""
        self._cached_tokens -= charge.cached_tokens
        self._expected_tokens -= charge.answer_tokens
        self._plain -= _is_plain(lease)
        if charge.surprise_tokens:
            left = self.surprises.pop(charge.tenant, 0.0) - charge.surprise_tokens
            if left >= 0.5:  # no rounding stays
                self.surprises[charge.tenant] = left
        if charge.holds:
            charge.holds = False
            self._drop(lease.ask)
        if not self._charges:
            self._expected_tokens = 0.0

    def _hold(self, ask: Ask, charge: Charge) -> None:
        if charge.holds or not ask.blocks or not ask.generates:
            return
        charge.holds = True
        tokens = STRIDE * ask.block_tokens
        for block in _counted(ask):
            count, total = self._blocks.get(block, (0, 0.0))
            self._blocks[block] = count + 1, total + tokens
            if count:
                self.shared_tokens += tokens + total / count - (total + tokens) / (count + 1)

    def _drop(self, ask: Ask) -> None:
        tokens = STRIDE * ask.block_tokens
        for block in _counted(ask):
            count, total = self._blocks[block]
            if count == 1:
                del self._blocks[block]
            else:
                self._blocks[block] = count - 1, total - tokens
                self.shared_tokens -= tokens + (total - tokens) / (count - 1) - total / count
        if not self._blocks:
            self.shared_tokens = 0.0  # no rounding stays

    def held_of(self, ask: Ask) -> float:
        """How many tokens of the beginning of this prompt streams hold already."""
        if not ask.blocks:
            # Without blocks, the share of it that is held is taken to be that of all tokens.
            share = self._backend.unheld_share
            return min(self._backend.cache.cached_tokens(ask), share * ask.prompt_tokens)
        blocks = 0
        for block in _counted(ask):
            if block not in self._blocks:
                break
            blocks += 1
        return min(STRIDE * ask.block_tokens * blocks, ask.prompt_tokens - 1.0)

    # What fits ----------------------------------------------------------------------------------

    def fits(self, tenant: TenantQueue, ask: Ask, left_tokens: float, now_s: float) -> bool:
        """Whether there is room for this prompt and its answer, with `left_tokens` still free."""
        capacity = self.capacity(now_s)
        if not capacity or not self._charges:
            return True
        answer = min(ANSWER_SHARE * capacity, tenant.expect(ask))
        if ask.prompt_tokens + answer > capacity:
            return True  # not even an empty cache has room: what it reports is no measure of this
        needed = ask.prompt_tokens - self.held_of(ask)
        if self.free_tokens(now_s) - left_tokens >= needed + answer:
            return True
        return needed <= self._spare_tokens(answer, capacity - left_tokens, now_s)

    def free_tokens(self, now_s: float) -> float:
        """The free tokens, less all that the answers are still expected to have."""
        backend = self._backend
        held = backend.active_decode_tokens + backend.queued_prefill_tokens + self._cached_tokens
        free = self.capacity(now_s) - held - self._expected_tokens
        if self._plain:
            free -= sum([each.unseen_tokens(now_s) for each in self._charges if _is_plain(each)])
        return free + self._shared_now() - self._unknown_now()

    def back_tokens(self, within_s: float, step_s: float, now_s: float) -> float:
        """The tokens held by streams that should end within this time."""
        steps = within_s / max(1e-6, step_s)
        streams = zip(self._streams(now_s), self._charges.values(), strict=True)
        return sum([held for (left, held), each in streams if left <= steps * each.sequences])

    def surprise(self, tenant: TenantQueue, ask: Ask) -> float:
        """How many more tokens its answer may have than expected."""
        return max(0.0, tenant.longest(ask) - tenant.expect(ask))

    def _spare_tokens(self, answer: float, capacity: float, now_s: float) -> float:
        """The longest prompt that fits with such an answer. Kept: many may ask in one moment."""
        self._unknown_now()
        of = self._backend.own.sequence, answer, capacity
        if self._spare_of != of:
            remote = self._backend.remote
            capacity += self._shared_now() - self._unknown_tokens
            capacity -= remote.active_decode_tokens + remote.queued_prefill_tokens
            self._spare = spare_tokens(self._streams(now_s), answer, capacity)
            self._spare_of = of
        return self._spare

    def _shared_now(self) -> float:
        """The tokens that are counted for more than one stream. Our own count knows long shared
        beginnings; the engine's last report knows short ones, too."""
        backend = self._backend
        return max(self.shared_tokens, backend.unheld_share * backend.active_decode_tokens)

    def _unknown_now(self) -> float:
        """What the engine held at its last report beyond all requests of ours."""
        report = self._backend.report
        if report is not self._report and report is not None:
            self._report = report
            self._spare_of = (-1, 0.0, 0.0)
            capacity = report.kv_tokens or 0
            known = sum([held for _, held in self._streams(report.at_s)])
            # Requests that were sent without admission are in these counts alone.
            load = self._backend
            known = max(known, float(load.active_decode_tokens + load.queued_prefill_tokens))
            unknown = report.kv_usage * capacity - max(0.0, known - self.shared_tokens)
            self._unknown_tokens = min(UNKNOWN_SHARE * capacity, max(0.0, unknown))
        return self._unknown_tokens

    def _streams(self, now_s: float) -> list[Stream]:
        """The tokens to come and held of all requests here."""
        most = ANSWER_SHARE * self.capacity(now_s)
        streams = []
        for lease, charge in self._charges.items():
            tokens = float(lease.generated_tokens)
            if self._plain and _is_plain(lease):
                tokens = lease.unseen_tokens(now_s)
            left_tokens = min(most, charge.tenant.left(lease.ask, tokens))
            streams.append((left_tokens, lease.ask.prompt_tokens + tokens))
        return streams


def spare_tokens(streams: Iterable[Stream], new_left: float, capacity: float) -> float:
    """The longest prompt that fits, with an answer of `new_left` tokens.

    Ignore overflows that happen after the new request has ended.
    """
    total, number, spare, beside = 0.0, 0, capacity, False
    for left, held in sorted(streams, reverse=True):
        if not beside and left < new_left:
            beside = True  # from here on it is there when one of them ends
            number += 1
            spare = min(spare, capacity - total - number * new_left)
        total += held
        number += 1
        if beside:
            spare = min(spare, capacity - total - number * left)
    if not beside:
        spare = min(spare, capacity - total - (number + 1) * new_left)
    return spare


def _counted(ask: Ask) -> tuple[int, ...]:
    return ask.blocks[STRIDE - 1 : ask.text_blocks : STRIDE]


def _is_plain(lease: Lease) -> bool:
    """Whether its answer comes in one piece."""
    return lease.ask.generates and not lease.ask.stream
