"""Cuts from a request what the steps in force do not allow, before it enters.

That is decided once: a later attempt at another backend has the same edits. Requests that generate
nothing never wait, so nothing is cut from them.
"""

from penstock.balancing.ask import Ask
from penstock.balancing.fleet import Pool
from penstock.proxy.data.budgets import ESTIMATE_OFF
from penstock.proxy.data.capping import cap
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request


def degrade(plane: DataPlane, request: Request, name: str, rank: int, now_s: float) -> None:
    """Cap the answer, if steps of its class are in force for it. `name`: whose turns it waits for.

    Raises ContextTooLongNow, and UnknownModel.
    """
    ask, classes = request.ask, plane.classes
    if not classes.steps or not (ask.engine and ask.generates):
        return
    if not classes.may_degrade(request.head.tenant):
        return
    pool = _pool_of(plane.fleet.resolve(ask), ask).name
    line = plane.admission.lines.get(pool)
    most, longest = plane.degradation.limits(
        pool, line, name, rank, classes.max_wait_s[rank], now_s
    )
    if longest is not None and ask.prompt_tokens > longest * (1.0 if ask.counted else ESTIMATE_OFF):
        raise plane.refusals.too_long_now(longest)
    if most is not None and cap(request, most):
        told = request.record.degraded = f"max_tokens={most}"
        # With any answer: a stream may get its 200 while it waits.
        request.answer.tell([(b"x-penstock-degraded", told.encode())])


def _pool_of(pools: list[Pool], ask: Ask) -> Pool:
    """The one that it goes to: the first with a backend for it."""
    for pool in pools:
        for backend in pool.backends:
            if backend.fit and backend.serves(ask.model):
                return pool
    return pools[0]
