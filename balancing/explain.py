"""Why a request would go where it would go: every backend's part in a choice, without making it.

A dry run: nothing is reserved, sent or remembered.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from balancing.ask import Ask
from balancing.backend import AdminState, Backend
from balancing.fleet import Pool
from balancing.policies.token_cost import Cost, TokenCost


class Candidate(NamedTuple):
    """One backend. `out` says why it cannot be chosen at all, empty where it can."""

    backend: Backend
    pool: str
    out: str
    cost: Cost | None
    cached_tokens: int
    to_win: str


def ineligible(backend: Backend, ask: Ask) -> str:
    """Why a backend does not come into question for this request; empty when it does."""
    if backend.admin_state is not AdminState.READY:
        return f"set to {backend.admin_state} by the operator"
    if not backend.healthy and not backend.last_resort:
        return f"{backend.state}: {backend.reason}" if backend.reason else str(backend.state)
    if not backend.serves(ask.model):
        return "does not serve the model"
    return ""


def candidates(
    pools: Sequence[Pool],
    chosen_pool: Pool | None,
    fit: Sequence[Backend],
    best: Sequence[Backend],
    ask: Ask,
    now_s: float,
) -> list[Candidate]:
    """All backends of `pools`; costs of those in `fit`, where the policy knows costs."""
    costs: dict[Backend, Cost] = {}
    bar_s = 0.0  # what another would have to cost less than
    if chosen_pool is not None and isinstance(policy := chosen_pool.policy, TokenCost):
        costs = dict(zip(fit, policy.costs(fit, ask, now_s), strict=True))
        bar_s = min([costs[each].seconds for each in best], default=0.0)
        if best and best[0].name == ask.home:
            bar_s = policy.bar_s(bar_s)
    found = []
    for pool in pools:
        for backend in pool.backends:
            out = ineligible(backend, ask)
            if not out and backend not in fit:
                out = _not_fit(backend, pool, chosen_pool)
            cost = costs.get(backend)
            to_win = ""
            if cost is not None and backend not in best:
                to_win = _to_win(backend, best[0], ask, cost, cost.seconds - bar_s, now_s)
            held = backend.cache.cached_tokens(ask)
            found.append(Candidate(backend, pool.name, out, cost, held, to_win))
    return found


def _not_fit(backend: Backend, pool: Pool, chosen_pool: Pool | None) -> str:
    """Why one that could serve it does not come into question now."""
    if not backend.fit:
        return f"{backend.state} on suspicion, {backend.reason}: asked when nobody else can be"
    if pool is not chosen_pool and chosen_pool is not None:
        return f"the pool {chosen_pool.name} comes first"
    return "it has all that its slow start takes at a time"


def _to_win(
    backend: Backend, best: Backend, ask: Ask, cost: Cost, gap_s: float, now_s: float
) -> str:
    """The least that would have to be otherwise at this backend, one thing at a time.

    Wait and prefill enter the cost linearly, each with what it makes of the other.
    """
    penalty_s = backend.penalty.read(now_s, ask.client)
    share = penalty_s / cost.wait_s if penalty_s else 0.0
    waits_s = (1.0 - share) * (cost.wait_s + cost.later_s)
    gap_s -= share * (cost.wait_s + cost.later_s)
    before = f"its penalty for failures over, in {penalty_s:.1f} s" if penalty_s else ""
    if before and gap_s <= 0.0:
        return before
    if gap_s <= 0.0:
        return f"fewer tokens given to it of late, by its weight, than to {best.name}"
    ways = []
    if waits_s >= gap_s:
        ahead = backend.waiting_tokens(now_s)
        ways.append(f"{ceil(ahead * gap_s / waits_s):,} tokens less to prefill before it")
    prefills_s = cost.prefill_s + cost.later_s + cost.others_s
    if prefills_s >= gap_s:
        uncached = ask.prompt_tokens - backend.cache.cached_tokens(ask)
        ways.append(
            f"{ceil(uncached * gap_s / prefills_s):,} more tokens of the prompt in its cache"
        )
    if cost.held_s >= gap_s:
        less = ceil(backend.active_decode_tokens * gap_s / cost.held_s)
        ways.append(f"{less:,} tokens less held by open streams")
    load_s = waits_s + cost.others_s + cost.held_s + cost.beside_s
    if not ways and load_s * (1.0 + 1e-9) >= gap_s:  # as idle as the best, but for rounding
        ways.append(f"{gap_s / load_s:.0%} less load of every kind")
    if ways:
        return " or ".join(f"{before} and {way}" if before else way for way in ways)
    if best.name == ask.home:
        return f"nothing that it has: the session's own, {best.name}, would have to cost more"
    return "nothing: idle it would still be slower"
