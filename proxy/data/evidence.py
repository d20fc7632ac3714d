"""What a judge of canaries or of new backends is told of a request, from its record.

Only what its version, or its backend, did counts. What penstock refused, and what a stored response
bound to one version, tells nothing.
"""

from typing import Final

from penstock.balancing.canary.metrics import Ended, Ending
from penstock.balancing.canary.steps import Draw
from penstock.balancing.canary.usual import is_watched
from penstock.balancing.lease import Lease
from penstock.balancing.routes.decision import Way
from penstock.proxy.data.budgets import LEFT
from penstock.proxy.data.request import Request
from penstock.proxy.telemetry.record import Record

# Failed attempts that are no fault of the backend: its client's time, penstock's own limits.
_NOT_ITS_FAULT: Final = frozenset({"client_timeout", "out_of_time", "ports", "not_here"})
# And what says that a backend has enough to do.
_BUSY: Final = "busy"
# Errors of penstock's own that say that a version does not serve.
_UNSERVED: Final = frozenset({"no_backend", "backend_error", "backend_timeout"})
# Too few tokens to tell how long each takes.
TOKENS_MIN: Final = 8


def evidence_of(request: Request, way: Way, draw: Draw, lease: Lease | None) -> Ended | None:
    """What became of a request of a route with a canary. None: it shows nothing."""
    ask, record = request.ask, request.record
    ending = _ending(request, way, lease)
    if ending is None:
        return None
    # Another version's times after a fall-back, or with a failed attempt in them, tell nothing.
    timed = ending in (Ending.SERVED, Ending.LEFT) and len(record.tries) == 1 and not way.step
    answered_s = record.first_token_s if timed else 0.0
    first_s = answered_s if record.streamed else 0.0
    sent_s = record.sent_s if timed else 0.0
    in_vain = sent_s and not answered_s and is_watched(ask)
    return Ended(
        ending,
        canary=way.canary,
        client=ask.client,
        key=draw.key,
        fresh=draw.fresh,
        prompt_tokens=ask.prompt_tokens,
        stream=ask.stream,
        queued_tokens=draw.queued_tokens,
        streams=draw.streams,
        ttft_s=first_s - sent_s if first_s and sent_s else None,
        first_s=answered_s - sent_s if answered_s and sent_s else None,
        waited_s=record.ended_s - sent_s if in_vain else 0.0,
        itl_s=_itl_s(record, first_s),
        completion_tokens=record.usage.completion_tokens if record.usage else None,
    )


def _ending(request: Request, way: Way, lease: Lease | None) -> Ending | None:
    record = request.record
    if way.step:
        cause = record.fell_back.partition(",")[0]
        return Ending.ERROR if cause in ("errors", "no_backend") else None
    if lease is None:
        return Ending.ERROR if record.error in _UNSERVED else None
    failures = [each for each in record.tries if each.failure]
    own = [each for each in failures if each.failure not in _NOT_ITS_FAULT]
    if own:
        return Ending.BROKEN if own[-1].first_token_s else Ending.ERROR
    if failures or _left(record):
        return Ending.LEFT
    return _of_answer(request)


def first_ending(request: Request) -> Ending | None:
    """How the first attempt of a request ended. None: it shows nothing of its backend."""
    record = request.record
    first = record.tries[0]
    if first.failure:
        if first.failure == _BUSY or first.failure in _NOT_ITS_FAULT:
            return None
        return Ending.BROKEN if first.first_token_s else Ending.ERROR
    if len(record.tries) > 1 or _left(record):
        return None
    return _of_answer(request)


def _left(record: Record) -> bool:
    return record.status == LEFT or (record.error is None and not record.whole)


def _of_answer(request: Request) -> Ending | None:
    """How the version's own answer counts."""
    record = request.record
    if record.error is not None:
        return None
    if record.status >= 400:
        return Ending.ERROR if record.status >= 500 else Ending.REFUSED
    empty = record.usage is not None and not record.usage.completion_tokens
    return Ending.EMPTY if request.ask.generates and empty else Ending.SERVED


def _itl_s(record: Record, first_s: float) -> float | None:
    """The mean time of a token after the first, where its client did not hold it up."""
    tokens = record.usage.completion_tokens if record.usage else 0
    if not first_s or record.held_up or not record.whole or tokens < TOKENS_MIN:
        return None
    return (record.ended_s - first_s) / (tokens - 1)
