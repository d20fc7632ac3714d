"""What is cut from requests before any is refused: steps of a class, by the pressure in its pool.

The pressure is the wait that is predicted for the next request, over the wait at which that would
be refused: 0.0 while nothing waits, 1.0 where refusals begin. It is the wait of one client, because
in a class clients take turns: whoever floods the pool waits behind its own requests, and only those
are cut. The next request is one of an ordinary size, whatever the client sends, with the patience
of its class. What engines have queued does not count: a long prompt of one client would raise the
pressure of all.

A step begins at its pressure. It ends when the pressure has been lower than most of that for a
while.
"""

from dataclasses import dataclass
from math import exp
from typing import Final, NamedTuple

from penstock.balancing.admission.pool_queue import PoolQueue
from penstock.balancing.admission.tenant_queue import TenantQueue
from penstock.balancing.admission.ttft import SHARE, TAU_S

# A step goes on while the pressure is above this share of its own.
END_SHARE: Final = 0.8
# For so long it must have been lower. The pace forgets in TAU_S, so a shorter time would follow the
# noise of the prediction. A longer one would cut answers when nothing waits any more.
HOLD_S: Final = 2.0 * TAU_S
# An ordinary prompt: in published traces of chats the median is about this.
NEXT_TOKENS: Final = 1_024


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `rank`: its class, 0 is the highest. It does one of the three things."""

    rank: int
    pressure: float
    max_tokens: int | None = None  # of an answer
    prompt_tokens: int | None = None
    fall_back: bool = False


class Limits(NamedTuple):
    """What the steps in force do with a request. None: no limit."""

    max_tokens: int | None = None  # of its answer
    prompt_tokens: int | None = None
    fall_back: bool = False  # it goes to the fall-back of its route, if that costs less


UNLIMITED: Final = Limits()


class Degradation:
    """The steps of all pools, and until when each goes on for whom."""

    def __init__(self) -> None:
        self.steps: tuple[Step, ...] = ()
        # By pool, client and number of the step.
        self._until_s: dict[tuple[str, str, int], float] = {}
        self._swept_s = 0.0

    def follow(self, steps: tuple[Step, ...]) -> None:
        """Take the steps of a configuration. New ones begin anew."""
        if steps != self.steps:
            self.steps = steps
            self._until_s = {}

    def limits(
        self, pool: PoolQueue | None, name: str, rank: int, max_wait_s: float, now_s: float
    ) -> Limits:
        """What steps do with a new request for this pool. `name`: whose it is.

        Of several steps the least counts.
        """
        if pool is None or (not pool.queue.waiting and not self._until_s):
            return UNLIMITED
        pressed = -1.0
        most: int | None = None
        longest: int | None = None
        fall_back = False
        for number, step in enumerate(self.steps):
            if step.rank != rank:
                continue
            if pressed < 0.0:
                pressed = pressure(pool, pool.queue.seen(name), rank, max_wait_s)
            if not self._goes_on((pool.name, name, number), step, pressed, now_s):
                continue
            most = _least(most, step.max_tokens)
            longest = _least(longest, step.prompt_tokens)
            fall_back = fall_back or step.fall_back
        return Limits(most, longest, fall_back)

    def _goes_on(self, key: tuple[str, str, int], step: Step, pressed: float, now_s: float) -> bool:
        """Whether a step is in force, now that its client has this pressure."""
        held = now_s < self._until_s.get(key, 0.0)
        if pressed >= step.pressure or (held and pressed >= END_SHARE * step.pressure):
            self._sweep(now_s)
            self._until_s[key] = now_s + HOLD_S
            return True
        return held

    def _sweep(self, now_s: float) -> None:
        """Forget what is over, once in a while."""
        if now_s - self._swept_s > HOLD_S:
            self._until_s = {key: until for key, until in self._until_s.items() if until > now_s}
            self._swept_s = now_s


def _least(one: int | None, other: int | None) -> int | None:
    """The smaller limit. None is none."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def pressure(pool: PoolQueue, tenant: TenantQueue, rank: int, max_wait_s: float) -> float:
    """That of a client in a class. `max_wait_s`: how long requests of the class wait."""
    able = pool.able
    if not pool.queue.waiting or not able:
        return 0.0  # nobody waits, or for a backend
    ahead = pool.queue.ahead_tokens(tenant, rank, NEXT_TOKENS)
    speed = sum([backend.prefill_speed.work_per_s for backend in able])
    wait_s = pool.ttft.before_s(ahead, rank, 0.0, speed)
    return wait_s * exp(tenant.error) / (SHARE * max_wait_s)


def highest_pressure(pool: PoolQueue, rank: int, max_wait_s: float) -> float:
    """That of the client that would wait longest, or of a new one if none waits in the class."""
    if not pool.queue.waiting:
        return 0.0
    longest, until = TenantQueue("", len(pool.queue.shares)), 0.0
    for tenant in pool.queue.backlogs[rank]:
        last = tenant.served + (tenant.queued_tokens[rank] + NEXT_TOKENS) / tenant.weight
        if last > until:  # whoever is served up to the highest count has the most ahead of it
            longest, until = tenant, last
    return pressure(pool, longest, rank, max_wait_s)
