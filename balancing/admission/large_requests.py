"""Which backends take large requests: those that an engine works on for long, or that may fill it.

On a prompt of tens of thousands of tokens an engine works for seconds, and all of its streams wait.
A request with very many choices fills its places, or its cache, for as long as they run. Three
rules hold, each only while it serves somebody:

- While other tenants ask for prompts, one tenant leaves them backends without its long prompts: the
  part of the backends that is their part of what the pool can prefill, up to a quarter.
- Beside slow streams of a higher class, a backend works on long prompts for a third of the time.
- While others ask, requests that may fill an engine have a quarter of the backends, one each.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.balancing.admission.capacity import WINDOW_WORK_MIN, Capacity, Others
from penstock.balancing.admission.queued_request import Charge, QueuedRequest, WaitReason
from penstock.balancing.admission.tenant_queue import TenantQueue
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.speed.estimates import work_of

# The engine works for long on a prompt, or a list of prompts, that takes more than this.
LONG_S: Final = 0.5
# Beside slow streams of a higher class, no other long prompt follows one for this many times its
# prefill time.
PACE: Final = 3.0
# Streams with a longer time between tokens are slow. Where 0.1 s a token is the goal, it is soon
# missed then: other prompts follow.
SLOW_GAP_S: Final = 0.04
# Other tenants get backends in proportion to their prefill demand, at most a quarter. Requests that
# fill engines get a quarter of the backends.
QUARTER: Final = 4
# A request may fill an engine if it has at least FILLING_SEQUENCES choices or prompts, and if these
# may take more than FILLING_SHARE of the cache.
FILLING_SEQUENCES: Final = 8
FILLING_SHARE: Final = 0.75
# It also may if it has more of them than most engines run at once (vLLM's default was 256).
SEQUENCES_MAX: Final = 256
# Other tenants need no backend of their own if they ask for less than this part of what this tenant
# asks for.
FEW: Final = 1.0 / 256.0
# A cache of unknown size is assumed to hold this many tokens.
UNKNOWN_TOKENS: Final = 100_000


class LargeRequests:
    """The rules for large requests in one pool."""

    def __init__(self, capacities: Mapping[Backend, Capacity]) -> None:
        self._capacities = capacities
        self.members: tuple[Backend, ...] = ()

    def is_long(self, backend: Backend, ask: Ask) -> bool:
        """Whether the engine would work on its prompts for long."""
        if ask.prompt_tokens <= WINDOW_WORK_MIN / 4:  # whatever they attend to
            return False
        return self._seconds(backend, ask) > LONG_S

    def _seconds(self, backend: Backend, ask: Ask) -> float:
        tokens = ask.prompt_tokens - backend.cache.cached_tokens(ask)
        work = work_of(tokens, ask.prompt_tokens / ask.prompts, ask.prompts)
        return work * backend.prefill_speed.work_s if work > WINDOW_WORK_MIN else 0.0

    def fills(self, tenant: TenantQueue, ask: Ask, capacity: Capacity, now_s: float) -> bool:
        """Whether its prompts or choices may fill the engine."""
        sequences = ask.prompts * ask.choices
        if sequences < FILLING_SEQUENCES or not ask.engine:
            return False
        if ask.generates and sequences > SEQUENCES_MAX:
            return True
        room = FILLING_SHARE * (capacity.kv.capacity(now_s) or UNKNOWN_TOKENS)
        return ask.prompt_tokens + tenant.longest(ask) > room

    def shortage(
        self, capacity: Capacity, request: QueuedRequest, ask: Ask, others: Others, now_s: float
    ) -> WaitReason | None:
        """Why a large request may not go to a backend that has room. None: it may."""
        assert request.tenant is not None
        if self.fills(request.tenant, ask, capacity, now_s):
            return None if self._may_fill(ask, others) else WaitReason.CHOICES
        if not self.is_long(capacity.backend, ask):
            return None
        if now_s < capacity.lane_until_s and self._slows(capacity, request.rank, now_s):
            return WaitReason.LARGE
        return None if self._leaves_some(capacity, request, ask, others) else WaitReason.LARGE

    def concerns(self, capacity: Capacity, ask: Ask) -> bool:
        """Whether these rules apply to a request at this backend."""
        several = ask.prompts * ask.choices >= FILLING_SEQUENCES
        return several or self.is_long(capacity.backend, ask)

    def sent(self, capacity: Capacity, charge: Charge, ask: Ask, now_s: float) -> None:
        """A request is sent there. Call it before the charge is added."""
        charge.fills = self.fills(charge.tenant, ask, capacity, now_s)
        if self.is_long(capacity.backend, ask):
            charge.large = True
            seconds = self._seconds(capacity.backend, ask)
            capacity.lane_until_s = now_s + PACE * seconds

    def _serving(self, ask: Ask) -> Sequence[Backend]:
        """The backends that serve its model."""
        return [each for each in self.members if each.can_serve and each.serves(ask.model)]

    def _may_fill(self, ask: Ask, others: Others) -> bool:
        """Whether one more request that fills an engine may run."""
        if others.mine * FEW > others.alike + others.higher:
            return True
        able = self._serving(ask)
        filled = [each for each in able if self._capacities[each].fills]
        return len(filled) < max(1, len(able) // QUARTER)

    def _slows(self, capacity: Capacity, rank: int, now_s: float) -> bool:
        """Whether a stream of a higher class runs there, and streams are slow.

        One whose client does not read may be there for as long as that client likes: it does not
        count.
        """
        if capacity.gap_s(now_s) <= SLOW_GAP_S:
            return False
        for lease, charge in capacity.charges.items():
            reads = lease.ask.stream and lease.first_token_s is not None and not lease.held_up
            if charge.rank < rank and reads:
                return True
        return False

    def _leaves_some(
        self, capacity: Capacity, request: QueuedRequest, ask: Ask, others: Others
    ) -> bool:
        """Whether its tenant leaves other tenants backends without its long prompts."""
        able = self._serving(ask)
        asked = others.alike + others.higher
        if len(able) < 2 or not asked:
            return True
        part = asked / sum([each.prefill_speed.work_per_s for each in able])
        left = min(max(1, len(able) // QUARTER), int(part * len(able) + 0.75))
        if not left:
            return True
        mine = [each for each in able if self._has_long(self._capacities[each], request)]
        return capacity.backend in mine or len(mine) < len(able) - left

    def _has_long(self, capacity: Capacity, request: QueuedRequest) -> bool:
        for charge in capacity.charges.values():
            if charge.large and charge.tenant is request.tenant:
                return True
        return False
