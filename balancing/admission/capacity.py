"""Whether one backend has room for one more request.

A backend has room if it has a free place, less than a window of prompts to prefill, and a KV cache
that holds the prompt and the expected answer. Own leases decide, because a report comes seconds
late. What is not known is taken for free.

**The window.** Prompts that wait in an engine cannot be reordered. So an engine gets WINDOW_S of
prefill in advance, the time of a few steps, plus one network round trip. One prompt always has
room.

**The places.** No metric tells how many streams an engine runs at once (vLLM's `--max-num-seqs`).
More requests than that wait in the engine. So the number is learnt when an engine reports waiting
requests while its cache has room and its streams get tokens at their usual pace. It is forgotten
when more streams have run.

**Others.** While other tenants or higher classes ask for room in the pool, a request leaves them as
much as they asked for in the last second, up to a small part of the backend, and its tenant's
answers may not come to more than is free.
"""

from math import exp, inf
from typing import Final

from penstock.balancing.admission.kv_cache import ANSWER_SHARE, KvCache
from penstock.balancing.admission.queued_request import Charge, QueuedRequest, WaitReason
from penstock.balancing.admission.tenant_queue import TenantQueue
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import RECENT_S, EngineReport
from penstock.balancing.lease import Lease
from penstock.balancing.prefill_queue import STEP_WORK

WINDOW_S: Final = 0.1
# One slow connection says little of the network.
ROUND_TRIP_MAX_S: Final = 0.25
# With many long streams a step takes long, and prompts in it cost little.
WINDOW_STEPS: Final = 4.0
# Measured speeds may be far too low at first. Any step has room for this much prefill work.
WINDOW_WORK_MIN: Final = 2_048.0
# The last part of the places, for other tenants of the class, and of the cache, for higher classes.
OTHERS_PART: Final = 1.0 / 16.0
HIGHER_PART: Final = 1.0 / 10.0
# A fading demand of fewer tokens than this counts as none.
LEAST_TOKENS: Final = 64.0
# Reserve four times the average demand per backend: it may all land on one, and answers outlast the
# second.
SAFETY: Final = 4.0
# A prompt is stuck if its first token is later than STUCK_S plus STUCK_TIMES the queued work.
STUCK_S: Final = 0.5
STUCK_TIMES: Final = 1.0
# At a higher usage, waiting requests of the engine wait for its cache.
KV_USAGE_MAX: Final = 0.9
# The time constant of the time between tokens.
GAP_TAU_S: Final = 1.0
# Streams that get tokens at less than this part of the usual pace are held up.
SLOW_PACE: Final = 0.25


class Others:
    """What others ask for beside one request, in tokens of the last second.

    `higher`: of higher classes. `alike`: of other tenants of its class. `mine`: of its own tenant
    in its class. `backends`: of the pool.
    """

    def __init__(self, higher: float, alike: float, mine: float, backends: int) -> None:
        self.higher = higher if higher > LEAST_TOKENS else 0.0
        self.alike = alike if alike > LEAST_TOKENS else 0.0
        self.mine = mine
        self.backends = max(1, backends)


class Capacity:
    """One backend: the requests that are there, and what is left."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.charges: dict[Lease, Charge] = {}
        self.kv = KvCache(backend, self.charges)
        self.sequences = 0  # that the engine runs of all requests, each choice on its own
        self.most_sequences = inf  # that it runs at once, and one more
        self.wanted = 0  # requests that wait, and that the policy would send here
        self.fills = 0  # requests whose choices may fill the engine
        self.lane_until_s = -inf  # until when no large prompt follows, beside higher streams
        self.short_s = -inf  # when a request found no room in the cache last
        self._report: EngineReport | None = None
        self._since_s = inf  # when its first request was sent
        self._stream_s = 0.0  # the time that streams were open lately, added up, and their tokens
        self._events = 0.0
        self._sampled_s = -inf

    # What is there ------------------------------------------------------------------------------

    def add(self, lease: Lease, charge: Charge) -> None:
        """A request is sent there."""
        self.charges[lease] = charge
        self._since_s = min(self._since_s, lease.began_s)
        self.sequences += charge.sequences
        self.kv.add(lease, charge)
        self.fills += charge.fills

    def prefilled(self, lease: Lease) -> Charge | None:
        """A prompt is prefilled. None: it was sent without admission."""
        charge = self.charges.get(lease)
        if charge is not None:
            charge.large = False
            self.kv.prefilled(lease, charge)
        return charge

    def remove(self, lease: Lease) -> Charge | None:
        """A request has ended. None: it was sent without admission."""
        charge = self.charges.pop(lease, None)
        if charge is not None:
            self.sequences -= charge.sequences
            self.fills -= charge.fills
            self.kv.remove(lease, charge)
        return charge

    def sample(self, now_s: float) -> None:
        """See what streams had since the last time. Called while requests wait."""
        passed_s = now_s - self._sampled_s
        fade = exp(-passed_s / GAP_TAU_S)
        streams = tokens = 0
        for lease, charge in self.charges.items():
            # A client that does not read shows nothing of the backend.
            if lease.first_token_s is None or not lease.ask.stream or lease.held_up:
                continue
            if charge.seen_tokens:
                streams += charge.sequences
                tokens += lease.generated_tokens - charge.seen_tokens
            charge.seen_tokens = max(1, lease.generated_tokens)
        if passed_s > GAP_TAU_S:
            self._stream_s = self._events = 0.0  # nothing waited meanwhile
        else:
            self._stream_s = self._stream_s * fade + passed_s * streams
            self._events = self._events * fade + tokens
        self._sampled_s = now_s

    def gap_s(self, now_s: float) -> float:
        """The time between two tokens of a stream. 0.0: not known."""
        known = self._events and now_s - self._sampled_s <= GAP_TAU_S
        return self._stream_s / self._events if known else 0.0

    # What is left -------------------------------------------------------------------------------

    @property
    def step_s(self) -> float:
        """The time of a step of the engine, which makes a token of each stream."""
        return self.backend.decode_speed.itl_s(self.backend.active_decode_tokens)

    def shortage(self, request: QueuedRequest, ask: Ask, now_s: float) -> WaitReason | None:
        """What the backend lacks for the request, whoever else asks. None: it has room."""
        if self.backend.is_closed(ask.client, now_s):
            return WaitReason.REQUESTS if self.backend.full else WaitReason.BUSY
        if not ask.engine:
            return None
        if not self.begins_in_time(now_s):
            return WaitReason.PROMPTS
        if not ask.generates:
            return None
        self._learn_places()
        if self.sequences and self.sequences + ask.prompts * ask.choices > self._places(now_s):
            return WaitReason.SEQUENCES
        assert request.tenant is not None
        return None if self.kv.fits(request.tenant, ask, 0.0, now_s) else WaitReason.KV_CACHE

    def back_tokens(self, within_s: float, now_s: float) -> float:
        """The tokens of its cache that should be free within this time, if nothing else is sent
        there."""
        free = max(0.0, self.kv.free_tokens(now_s))
        return free + self.kv.back_tokens(within_s, self.step_s, now_s)

    def begins_in_time(self, now_s: float) -> bool:
        """Whether an engine would begin a new prompt within the window."""
        backend, head, work_s = self.backend, self.backend.queue.head, self._work_s(now_s)
        if head is None or work_s == 0.0:
            return True
        # A step takes several prompts, and all of them have their first tokens at its end.
        done = backend.queue.head_s(now_s) / work_s
        work = backend.queued_work - min(done, max(STEP_WORK, float(head.queued_work)))
        # An engine whose speed nobody has measured yet gets as much as a step has room for.
        measured = backend.prefill_speed.samples > 0
        if work < (WINDOW_WORK_MIN if measured else STEP_WORK):
            return True
        seconds = work * work_s - min(ROUND_TRIP_MAX_S, backend.round_trip_s)
        return seconds < WINDOW_S or seconds < WINDOW_STEPS * self.step_s

    def _work_s(self, now_s: float) -> float:
        """Seconds for a unit of work of all engines at the address.

        Where no report has told of them for a while, there may be any number: prompts are counted
        only when the oldest one takes far longer than its own work does.
        """
        backend, head = self.backend, self.backend.queue.head
        report, work_s = backend.report, backend.prefill_speed.work_s
        told_s = report.at_s if report is not None else self._since_s
        if now_s - told_s <= RECENT_S:
            return work_s / report.engines if report is not None else work_s
        own_s = head.queued_work * work_s if head is not None else 0.0
        late = isinstance(head, Lease) and now_s - head.began_s > STUCK_S + 2.0 * own_s
        return work_s if late else 0.0

    def opens(self, now_s: float) -> bool:
        """Whether it takes a prompt now. Whether its answer fits is seen for each request."""
        if self.backend.is_closed("", now_s) or not self.begins_in_time(now_s):
            return False
        return self.sequences < self._places(now_s)

    def _places(self, now_s: float) -> float:
        """How many requests it takes at once, one of them waiting in the engine. inf: unknown."""
        report = self.backend.report
        told = report is not None and now_s - report.at_s <= RECENT_S
        return self.most_sequences if told else inf

    def spares(self, tenant: TenantQueue, ask: Ask, others: Others, now_s: float) -> bool:
        """Whether it leaves others what they ask for."""
        if not ask.generates or (not others.higher and not others.alike):
            return True
        mine = sum([each.tenant is tenant for each in self.charges.values()])
        # Who has not the most there need not spare any places for others.
        if others.alike and 2 * mine > len(self.charges) and not self._spares_places(others, now_s):
            return False
        capacity = self.kv.capacity(now_s)
        left = min(HIGHER_PART * capacity, SAFETY * others.higher / others.backends)
        if left and not self.kv.fits(tenant, ask, left, now_s):
            return False
        if not capacity or not others.alike:
            return True
        return self._grows_apart(tenant, ask, left, others.backends, now_s)

    def _spares_places(self, others: Others, now_s: float) -> bool:
        """Whether the last places are left to others, in proportion to what they ask for."""
        limit = self._places(now_s)
        if self.backend.max_requests is not None:
            limit = min(limit, float(self.backend.max_requests))
        if limit == inf:
            return True
        backend = self.backend
        held = backend.active_decode_tokens + backend.queued_prefill_tokens
        requests = SAFETY * others.alike / others.backends * len(self.charges) / max(1, held)
        left = int(min(max(1.0, OTHERS_PART * limit), requests) + 0.5)
        return max(backend.own.requests, self.sequences) + 1.0 <= limit - left

    def _grows_apart(
        self, tenant: TenantQueue, ask: Ask, left: float, backends: int, now_s: float
    ) -> bool:
        """Whether its tenant's answers fit even if they become as long as they may.

        Only the tenant with the most surprise must show that. The bound is relaxed by the answer
        tokens that this tenant received here in the last minute.
        """
        mine = self.kv.surprises.get(tenant, 0.0)
        if not mine or 2.0 * mine < sum(self.kv.surprises.values()):
            return True
        given = tenant.answers_given.of(now_s) / backends
        capacity = self.kv.capacity(now_s)
        surprise = min(ANSWER_SHARE * capacity, self.kv.surprise(tenant, ask))
        free = self.kv.free_tokens(now_s) - left
        return mine + surprise - given <= free - ask.prompt_tokens - tenant.expect(ask)

    # How many streams it runs -------------------------------------------------------------------

    def _learn_places(self) -> None:
        """See what a new report says of the number of streams."""
        report = self.backend.report
        if report is None or report is self._report:
            return
        before, self._report = self._report, report
        if report.running >= self.most_sequences:
            self.most_sequences = inf  # more have run
        waiting = report.waiting > report.deferred and report.kv_usage < KV_USAGE_MAX
        if not waiting or before is None or not self._is_stuck(report):
            return
        if _moves(before, report, self.step_s):
            # Allow one request to wait in the engine, so that no place idles between streams. A
            # report between two steps may tell of one stream less.
            most, known = report.running + 1.0, self.most_sequences
            if known == inf:
                self.most_sequences = most
            elif most < known - 1.0:
                self.most_sequences = known - 1.0

    def _is_stuck(self, report: EngineReport) -> bool:
        """Whether a prompt of ours has no first token for far longer than its work takes."""
        oldest_s = inf
        for lease in self.charges:
            if lease.ask.stream and lease.first_token_s is None and not lease.overtaken:
                oldest_s = min(oldest_s, lease.began_s)
        work_s = self.backend.queued_work * self.backend.prefill_speed.work_s
        return report.at_s > oldest_s + STUCK_S + STUCK_TIMES * work_s


def _moves(before: EngineReport, report: EngineReport, step_s: float) -> bool:
    """Whether each stream had its tokens between two reports, at a quarter of the usual pace."""
    tokens = report.generated_tokens - before.generated_tokens
    streams = min(before.running, report.running)
    return tokens * step_s >= SLOW_PACE * streams * (report.at_s - before.at_s)
