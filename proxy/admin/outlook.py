"""What would become of a request before a backend, as JSON: sent, kept waiting or refused.

A dry run of admission and of the tenant's budget. It does not say whether the proxy itself is at a
limit.
"""

from penstock.balancing.adapters import NotLoaded, Step
from penstock.balancing.admission.dry_run import Forecast
from penstock.balancing.admission.queued_request import QueuedRequest, TooLate, WaitReason
from penstock.balancing.ask import Ask
from penstock.balancing.gate import NoBackend, OwnerAway, UnknownResponse
from penstock.proxy.data.adapters import WAIT_S
from penstock.proxy.data.patience import Patience
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.refusals import late
from penstock.proxy.data.service_classes import ASKED
from penstock.proxy.errors.client import ResponseNotFound
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.wire.header_fields import Headers


def outlook(plane: DataPlane, ask: Ask, headers: Headers, now_s: float) -> dict[str, object]:
    """Without a tenant it is that of a client that has sent nothing lately."""
    request = _request(plane, ask, headers, now_s)
    told: dict[str, object] = {"class": plane.classes.names[request.rank]}
    try:
        plane.budgets.check(ask, now_s)
        step = plane.adapters.foreseen(ask, now_s)
        if step.waits:
            return told | _loads_first(step)
        found = plane.admission.forecast(request, now_s)
    except PenstockError as error:
        return told | _refused(error)
    except OwnerAway:
        return told | _refused(plane.refusals.out_of_reach())
    except NoBackend:
        return told | _refused(plane.refusals.no_backend())
    except NotLoaded as error:
        return told | _refused(plane.refusals.not_loaded(error.retry_after_s))
    except UnknownResponse:
        return told | _refused(ResponseNotFound(ask.response_id))
    told |= _foreseen(plane, found, request)
    if found.refused is not None:
        told |= _refused(_late(found.refused, request))
    return told


def _request(plane: DataPlane, ask: Ask, headers: Headers, now_s: float) -> QueuedRequest:
    """As the data port would make it of its headers and its tenant."""
    classes = plane.classes
    asked = [value for name, value in headers if name == ASKED]
    rank = classes.rank_of(ask.tenant, asked[0] if asked else None, ask.service_tier)
    patience = Patience(headers, now_s, plane.timeouts.total_s)
    deadline_s, impatient = classes.deadline_of(rank, patience.begins_within_s)
    return QueuedRequest(
        ask,
        now_s,
        lambda _: None,
        ask.tenant,
        rank,
        deadline_s,
        impatient=impatient,
        dry=True,
    )


def _loads_first(step: Step) -> dict[str, object]:
    """`backend`: None where a load runs, or has to wait for the end of others."""
    return {
        "outcome": "wait",
        "backend": step.begins.name if step.begins is not None else None,
        "waits_for": WaitReason.ADAPTER.value,
        "ahead": [],
        "allowed_s": WAIT_S,
    }


def _foreseen(plane: DataPlane, found: Forecast, request: QueuedRequest) -> dict[str, object]:
    told: dict[str, object] = {
        "outcome": found.fate.value,
        "backend": found.backend.name if found.backend is not None else None,
    }
    if found.reason is None:
        return told
    return told | {
        "waits_for": found.reason.value,
        "ahead": [
            {
                "class": plane.classes.names[each.rank],
                "requests": each.requests,
                "tokens": each.tokens,
                "tenants": each.tenants,
            }
            for each in found.ahead
        ],
        "predicted_s": round(found.predicted_s, 3),
        "allowed_s": round(found.allowed_s, 3),
        "deadline_s": round(request.deadline_s, 3),
    }


def _late(refused: TooLate, request: QueuedRequest) -> PenstockError:
    return late(refused.retry_after_s, refused.predicted_s, own=request.impatient)


def _refused(error: PenstockError) -> dict[str, object]:
    """The error that its client would get. The data port spreads the time of some retries."""
    return {
        "outcome": "refuse",
        "error": {
            "status": error.status,
            "code": error.code,
            "message": str(error),
            "headers": {name.decode(): value.decode() for name, value in error.headers},
        },
    }
