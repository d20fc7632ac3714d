"""Why a request would go where it would go: every backend's part in a choice, without making it.

A dry run: nothing is reserved, sent or remembered.
"""

from collections.abc import Sequence
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
    if chosen_pool is not None and isinstance(chosen_pool.policy, TokenCost):
        costs = dict(zip(fit, chosen_pool.policy.costs(fit, ask, now_s), strict=True))
    best_s = min([costs[each].seconds for each in best if each in costs], default=0.0)
    found = []
    for pool in pools:
        for backend in pool.backends:
            out = ineligible(backend, ask)
            if not out and backend not in fit:
                out = "its slow start does not take this much yet"
                if pool is not chosen_pool and chosen_pool is not None:
                    out = f"the pool {chosen_pool.name} comes first"
            cost = costs.get(backend)
            to_win = ""
            if cost is not None and backend not in best:
                to_win = _to_win(backend, best[0], ask, cost, cost.seconds - best_s, now_s)
            held = backend.cached_tokens(ask, now_s)
            found.append(Candidate(backend, pool.name, out, cost, held, to_win))
    return found


def _to_win(
    backend: Backend, best: Backend, ask: Ask, cost: Cost, gap_s: float, now_s: float
) -> str:
    """The least that would have to be otherwise at this backend, one thing at a time.

    Wait and prefill enter the cost linearly, each with what it makes of the other.
    """
    if gap_s <= 0.0 and ask.home is not None and ask.home.backend == best.name:
        return f"so much less cost that its session leaves {best.name}"
    if gap_s <= 0.0:
        return f"fewer tokens given to it of late, by its weight, than to {best.name}"
    ways = []
    waits_s = cost.wait_s + cost.later_s
    ahead = backend.wait_work(now_s)
    if waits_s >= gap_s and ahead:
        ways.append(f"{ahead * gap_s / waits_s:,.0f} tokens less to prefill before it")
    elif waits_s >= gap_s:
        ways.append(f"{gap_s / waits_s:.0%} less of the penalty for its failures")
    prefills_s = cost.prefill_s + cost.later_s + cost.others_s
    if prefills_s >= gap_s:
        uncached = ask.prompt_tokens - backend.cached_tokens(ask, now_s)
        ways.append(f"{uncached * gap_s / prefills_s:,.0f} more tokens of the prompt in its cache")
    if cost.held_s >= gap_s:
        share = gap_s / cost.held_s
        ways.append(f"{share * backend.active_decode_tokens:,.0f} tokens less held by open streams")
    if ways:
        return " or ".join(ways)
    load_s = cost.wait_s + cost.later_s + cost.others_s + cost.held_s + cost.beside_s
    if load_s >= gap_s:
        return f"{gap_s / load_s:.0%} less load of every kind"
    return "nothing: idle it would still be slower"
