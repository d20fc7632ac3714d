"""Where a request goes whose choice has no room: to another place, if that costs little more.

A backend with slow streams is never such a place. Little is queued there, but it has much to
decode.
"""

from math import inf
from typing import Final

from penstock.balancing.admission.lack import Lack
from penstock.balancing.admission.places import Places
from penstock.balancing.admission.ticket import Ticket
from penstock.balancing.backend import Backend
from penstock.balancing.look import Look

# A backend with room may cost a tenth more than the best one. That share grows with the wait, by a
# half until the deadline or until 30 s, whichever is first. Places that cost more are worse than
# waiting: long prompts then go everywhere, and all streams become slower. On a published trace with
# long conversations, at 0.95 of capacity, answers took 28 % longer if a tenth was added for each
# second, and if a full cache made any place good enough. Without what is added, the longest quarter
# of prompts got less than half of its part above capacity ("Detours" in
# bench/history/2026-11-admission.md).
DETOUR: Final = 0.1
DETOUR_LATE: Final = 0.5
DETOUR_S: Final = 30.0
# No detour for a prompt of which a larger share is cached at the choice. If its choice lacks only
# room for prompts, it stays. If the cache or the streams are full, it may leave after half of its
# time, for a backend that no other request wants. Elsewhere the beginning is computed and held once
# more: with 180 beginnings on four engines, three quarters of their capacity were too much for them
# ("Warm prompts" in bench/history/2026-11-admission.md).
WARM: Final = 0.1
WARM_LATE: Final = 0.5
# No detour to streams with a longer time between tokens than this. With 0.04 s the longest quarter
# of prompts had 0.46 of its part of `uniform` at twice the capacity, and with this 0.62.
GAP_MAX_S: Final = 0.06


def lighter(places: Places, look: Look, now_s: float) -> Look:
    """The look, with another choice while the cache of its choice is short of room.

    That is the backend whose streams hold the most of the prompt already, by WARM of it and more.
    There it takes less room, and a beginning is not held at one more engine. On the 180 beginnings
    of `bench overload --mix agents`, at 0.95 of the capacity, 26 % of the attempts were refused
    without this, and none with it.
    """
    ask = look.ask
    if not ask.blocks or ask.home == look.chosen.name:
        return look  # or its session is there
    if not places.room_of(look.chosen).cache.is_short(now_s):
        return look
    best, most = look.chosen, places.room_of(look.chosen).cache.shared_tokens(ask)
    most += WARM * ask.prompt_tokens
    for backend in look.fit:
        shared = places.room_of(backend).cache.shared_tokens(ask)
        if shared > most:
            best, most = backend, shared
    return look if best is look.chosen else Look(look.pool, look.fit, ask, best)


def detour(places: Places, ticket: Ticket, look: Look, now_s: float) -> Backend | None:
    """The cheapest place with room that is not far dearer than the best one."""
    late = (now_s - ticket.since_s) / min(DETOUR_S, ticket.deadline_s)
    found = [look.chosen, *_others(places, ticket, look, late, now_s)]
    if len(found) == 1:
        return None
    costs = look.pool.policy.costs(found, look.ask, now_s)
    best, least = 0, inf
    for place in range(1, len(found)):
        if costs[place] < least:
            best, least = place, costs[place]
    most = costs[0] * (1.0 + DETOUR + DETOUR_LATE * late)
    room = places.room_of(look.chosen)
    if look.pool.policy.costs_seconds and room.takes_prompts():  # so its cache is full
        most += room.cache.sure_wait_s(ticket, look.ask, now_s)
    if room.giants:  # which may be there for minutes
        most = inf
    return found[best] if least <= most else None


def _others(places: Places, ticket: Ticket, look: Look, late: float, now_s: float) -> list[Backend]:
    """The places beside the choice that have room, if it may go to any."""
    cached = look.chosen.cache.cached_tokens(look.ask) > WARM * look.ask.prompt_tokens
    if cached:
        lack = places.lack(look.chosen, ticket, look.ask, now_s)
        if lack is Lack.PROMPTS or (late < WARM_LATE and lack is not Lack.GIANT):
            return []
    found = []
    for backend in look.fit:
        room = places.room_of(backend)
        if backend is look.chosen or room.gap_s > GAP_MAX_S or (cached and room.wanted):
            continue
        if not room.takes_prompts():  # `takes` asks it late, and most take none while many wait
            continue
        if places.takes(backend, ticket, look.ask, now_s):
            found.append(backend)
    return found
