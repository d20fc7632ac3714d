"""A dry run of a choice: where a request would go, and why, with every backend's part in it.

Nothing is reserved, sent or remembered.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.balancing.ask import Ask
from penstock.balancing.backend import AdminState, Backend
from penstock.balancing.fleet import Pool
from penstock.balancing.policies.policy import Part


class Candidate(NamedTuple):
    """One backend. `out` says why it cannot be chosen at all. It is empty if it can."""

    backend: Backend
    pool: str
    out: str
    part: Part
    cached_tokens: int


def ineligible(backend: Backend, ask: Ask) -> str:
    """Why a backend cannot be chosen for this request. Empty if it can."""
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
    parts: Mapping[Backend, Part],
    ask: Ask,
) -> list[Candidate]:
    """All backends of `pools`. `parts` is what the policy says of those that may be chosen."""
    found = []
    for pool in pools:
        for backend in pool.backends:
            out = ineligible(backend, ask)
            part = parts.get(backend)
            if not out and part is None:
                out = _not_fit(backend, pool, chosen_pool)
            held = backend.cache.cached_tokens(ask)
            found.append(Candidate(backend, pool.name, out, part or Part(), held))
    return found


def _not_fit(backend: Backend, pool: Pool, chosen_pool: Pool | None) -> str:
    if not backend.fit:
        return f"{backend.state} ({backend.reason}): used only when no other can serve"
    if pool is not chosen_pool and chosen_pool is not None:
        return f"the pool {chosen_pool.name} comes first"
    return "it already has as many requests as its slow start allows"
