"""Where a request goes whose backend has no room: to another one, if that costs little more."""

from collections.abc import Callable
from math import inf
from typing import Final

from penstock.balancing.admission.capacity import Capacity
from penstock.balancing.admission.queued_request import QueuedRequest, WaitReason
from penstock.balancing.backend import Backend
from penstock.balancing.gate import Look

# A backend with room may cost a tenth more than the best one. That share grows with the wait, by a
# half until the deadline or until 30 s, whichever is first. Places that cost more are worse than
# waiting: long prompts then go everywhere, and all streams become slower.
SPILL: Final = 0.1
SPILL_LATE: Final = 0.5
SPILL_S: Final = 30.0
# Where the backend has no room in its cache, or no place, or refuses for load, a request need not
# wait for longer than another backend would cost more: it goes there once it has waited so long.
ROOM: Final = (WaitReason.KV_CACHE, WaitReason.SEQUENCES, WaitReason.REQUESTS, WaitReason.BUSY)
# A prompt of which a larger share is cached at its backend stays. Elsewhere the beginning would be
# computed and held once more.
WARM: Final = 0.1
# How long a cache counts as short of room after a request found none in it.
SHORT_S: Final = 1.0


def lighter(look: Look, capacity_of: Callable[[Backend], Capacity], now_s: float) -> Look:
    """The look, with another choice while the cache of its choice is short of room: the backend
    whose streams hold the most of the prompt already. The prompt takes less room there."""
    ask, chosen = look.ask, capacity_of(look.chosen)
    if not ask.blocks or ask.home == look.chosen.name or now_s > chosen.short_s + SHORT_S:
        return look  # or its session is there
    best, most = look.chosen, chosen.kv.held_of(ask) + WARM * ask.prompt_tokens
    for backend in look.fit:
        held = capacity_of(backend).kv.held_of(ask)
        if held > most:
            best, most = backend, held
    return look if best is look.chosen else Look(look.pool, look.fit, ask, best)


def spillover(
    look: Look,
    request: QueuedRequest,
    reason: WaitReason,
    has_room: Callable[[Backend], bool],
    now_s: float,
) -> Backend | None:
    """The cheapest backend with room that costs little more than the choice.

    `reason`: what the choice lacks.
    """
    ask = look.ask
    if len(look.fit) < 2:
        return None
    if look.chosen.cache.cached_tokens(ask) > WARM * ask.prompt_tokens:
        return None
    found = [each for each in look.fit if each is not look.chosen and has_room(each)]
    if not found:
        return None
    waited_s = now_s - request.since_s
    late = min(1.0, waited_s / min(SPILL_S, request.deadline_s))
    costs = look.pool.policy.costs([look.chosen, *found], ask, now_s)
    best, least = 0, inf
    for place in range(1, len(costs)):
        if costs[place] < least:
            best, least = place, costs[place]
    most = costs[0] * (1.0 + SPILL + SPILL_LATE * late)
    if reason in ROOM and look.pool.policy.costs_seconds:
        most = max(most, costs[0] + waited_s)
    return found[best - 1] if least <= most else None
