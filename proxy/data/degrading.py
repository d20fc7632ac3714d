"""Cuts from a request what the steps in force do not allow, or sends it to its fall-back.

That is decided once for each pool: a later attempt at another backend has the same edits. Requests
that generate nothing never wait, so no step is for them.
"""

from penstock.balancing.ask import Ask
from penstock.balancing.fleet import Pool
from penstock.proxy.data.budgets import ESTIMATE_OFF
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request
from penstock.proxy.data.route_changes import cap
from penstock.proxy.data.routing import costs_less_elsewhere


class Relieved(Exception):
    """A step sends the request to the fall-back that its route has for overload."""


def degrade(plane: DataPlane, request: Request, name: str, rank: int, now_s: float) -> None:
    """Do what the steps of its class that are in force say. `name`: whose turns it waits for.

    Raises Relieved, ContextTooLongNow, and UnknownModel.
    """
    ask, classes = request.ask, plane.classes
    if not classes.steps or not (ask.engine and ask.generates):
        return
    if not classes.may_degrade(request.head.tenant):
        return
    pool = plane.admission.pools.get(_pool_of(plane.fleet.resolve(ask), ask).name)
    most, longest, fall_back = plane.degradation.limits(
        pool, name, rank, classes.max_wait_s[rank], now_s
    )
    if fall_back and costs_less_elsewhere(plane, request, rank):
        _tell(request, "fall_back")
        raise Relieved
    if longest is not None and ask.prompt_tokens > longest * (1.0 if ask.counted else ESTIMATE_OFF):
        raise plane.refusals.too_long_now(longest)
    if most is not None and cap(request, most):
        _tell(request, f"max_tokens={most}")


def _tell(request: Request, what: str) -> None:
    """Tell its client and its record. With any answer: a stream may get its 200 while it waits."""
    record = request.record
    record.degraded = f"{record.degraded}, {what}" if record.degraded else what
    request.answer.tell([(b"x-penstock-degraded", what.encode())])


def _pool_of(pools: list[Pool], ask: Ask) -> Pool:
    """The one that it goes to: the first with a backend for it."""
    for pool in pools:
        for backend in pool.backends:
            if backend.fit and backend.serves(ask.model):
                return pool
    return pools[0]
