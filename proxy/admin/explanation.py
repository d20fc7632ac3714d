"""`POST /api/v1/explain`: a choice as JSON. It holds nothing of the prompt itself.

A body to be explained may be as large as any request's. So its bytes count with the bodies of the
data port while they are here. They take at most a fifth of that room, and nobody gives way to them.
"""

import asyncio
from io import BytesIO
from typing import Final

import msgspec
from aiohttp import web

from penstock.balancing.adapters import NotLoaded, Step
from penstock.balancing.admission.dry_run import Forecast
from penstock.balancing.admission.queued_request import QueuedRequest, TooLate, WaitReason
from penstock.balancing.ask import Ask
from penstock.balancing.computed_prompts import OverContext
from penstock.balancing.explain import Candidate
from penstock.balancing.field_scan import NO_OBJECT
from penstock.balancing.field_values import NO_FIELD
from penstock.balancing.fleet import UnknownModel
from penstock.balancing.forms import MalformedAsk
from penstock.balancing.gate import Choice, NoBackend, OwnerAway, UnknownResponse
from penstock.balancing.members import NoObject, members
from penstock.balancing.outline import Steps, T
from penstock.balancing.routes.request import RouteRequest
from penstock.proxy.admin.answers import answer_of, error_answer, json_answer
from penstock.proxy.data.adapters import WAIT_S
from penstock.proxy.data.bodies import LEFT
from penstock.proxy.data.endpoints import INVOCATIONS
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.reading import invoked_path, reading_ask
from penstock.proxy.data.refusals import ROOM_S, late
from penstock.proxy.data.request import Patience
from penstock.proxy.data.routing import (
    aimed,
    cheapest,
    is_routed,
    is_served,
    next_fallback,
    route_request,
    way_of,
)
from penstock.proxy.data.service_classes import ASKED
from penstock.proxy.errors.client import (
    BodyTooLarge,
    ContextLengthExceeded,
    ModelNotFound,
    ResponseNotFound,
    RouteRefused,
)
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.errors.own import Overloaded
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


class _Given(msgspec.Struct):
    messages: msgspec.Raw = NO_FIELD
    prompt: msgspec.Raw = NO_FIELD
    input: msgspec.Raw = NO_FIELD


_given = msgspec.json.Decoder(_Given)

# The time that a body has to arrive.
BODY_S: Final = 3.0


class Explanation:
    """The handler. It reserves and sends nothing. One body is held at a time."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._reading = asyncio.Lock()
        self._held_bytes = 0

    async def answer(self, request: web.Request) -> web.Response:
        """Tell where the request in the body would go. `path` and `tenant` say whose it is,
        `label` what the classifier would say. That is not asked."""
        if self._reading.locked():  # waiting would occupy one of the port's few connections
            message = "Another request is being explained; retry."
            return answer_of(Overloaded("bodies", message, retry_after_s=ROOM_S))
        async with self._reading:
            try:
                async with asyncio.timeout(BODY_S):
                    body = await self._body(request)
                return await self._explained(request, body)
            except PenstockError as error:
                return answer_of(error)
            except (TimeoutError, ConnectionError):  # or the client has left
                return error_answer(408, "request_timeout", "The body did not come in time.")
            finally:
                self._plane.bodies.held_bytes -= self._held_bytes
                self._held_bytes = 0

    async def _body(self, request: web.Request) -> bytes:
        """The whole body, counted as it comes. Raises a PenstockError when there is no room."""
        self._check(request.content_length or 0)
        body = BytesIO()
        async for data in request.content.iter_any():
            self._check(len(data))
            self._held_bytes += len(data)
            self._plane.bodies.held_bytes += len(data)
            body.write(data)
        return body.getvalue()

    def _check(self, size_bytes: int) -> None:
        """Raise a PenstockError if so many more bytes are too many, or memory is short."""
        plane = self._plane
        own_bytes = self._held_bytes + size_bytes
        limit_bytes = min(plane.body_bytes_max, plane.bodies_bytes // (LEFT + 1))
        if own_bytes > limit_bytes:
            raise BodyTooLarge(limit_bytes)
        if plane.overload.reason == "memory":
            message = "Memory is short, so nothing is explained now; retry."
            hint_s = plane.overload.hint_s(plane.now())
            raise Overloaded("memory", message, retry_after_s=hint_s)
        if plane.bodies.held_bytes + size_bytes + own_bytes // LEFT > plane.bodies_bytes:
            message = "The bodies of requests leave no room for this one; retry."
            raise Overloaded("bodies", message, retry_after_s=ROOM_S)

    async def _explained(self, request: web.Request, body: bytes) -> web.Response:
        plane = self._plane
        if not body:
            return error_answer(400, "invalid_request", NO_OBJECT)
        tenant = request.query.get("tenant", "")
        if tenant and all(tenant != each.name for each in plane.settings.tenants):
            return error_answer(
                404, "unknown_tenant", "No tenant of this name is configured; see `tenants`."
            )
        path = request.query.get("path", "")
        if not path:
            path = await _taken(path_of(body))
        if path.encode() == INVOCATIONS:
            path = (await _taken(invoked_path(body))).decode()
        endpoint = plane.paths.find(b"POST", path.encode())
        if endpoint is None:
            return error_answer(
                404,
                "not_proxied",
                "`path` must be a path that this proxy serves, such as ?path=/v1/completions.",
            )
        headers = [
            (name.lower(), value)
            for name, value in request.raw_headers
            if name.lower() != b"origin"
        ]
        try:
            ask = await _taken(reading_ask(plane, path, endpoint, headers, body, tenant))
            now_s = plane.now()
            asked = route_request(plane, ask, dict(reversed(headers)).get, draw=0)
            asked.label = request.query.get("label") or None
            needs_label = asked.label is None and _needs_label(plane, asked)
            ask, routes = _routed(plane, asked)
            prospect = outlook(plane, ask, headers, now_s)
            any_may = prospect.get("waits_for") == WaitReason.ADAPTER  # each of them may load it
            choice = plane.gate.explain(ask.changed(model=None) if any_may else ask, now_s)
        except MalformedAsk as error:
            return error_answer(400, "invalid_request", str(error))
        except UnknownModel:
            return error_answer(404, "model_not_found", str(ModelNotFound(ask.model)))
        except OverContext as error:
            return answer_of(ContextLengthExceeded(error.context_tokens))
        policies = {pool.name: pool.policy for pool in plane.settings.pools}
        told = render(ask, choice, policies.get(choice.pool or ""))
        told |= {"routes": routes, "needs_label": needs_label, "admission": prospect}
        return json_answer(told)


def _needs_label(plane: DataPlane, asked: RouteRequest) -> bool:
    """Whether the classifier would be asked where it would go."""
    return plane.labelling.on and is_routed(asked.ask) and plane.routes.needs_label(asked)


def _routed(plane: DataPlane, asked: RouteRequest) -> tuple[Ask, list[dict[str, object]]]:
    """The request as its route aims it, and of each route whether it counts, or why not.

    If its pool serves nobody, it is aimed at the fall-back that it would go to.
    """
    ask = asked.ask
    if not plane.routes.rules or not is_routed(ask):
        return ask, []
    told = [each._asdict() for each in plane.routes.explain(asked)]
    decision = plane.routes.decide(asked)
    if decision is None:
        return ask, told
    if decision.target is None:
        raise RouteRefused(decision.rule.refusal)
    if decision.rule.spill:
        decision = cheapest(plane, decision, ask, asked.service_class)
    way = way_of(plane, decision, ask)
    there = aimed(plane, ask, way.target, ask.model)
    if is_served(plane, there):
        return there, told
    to = next_fallback(plane, ask, way, "no_backend")
    return (aimed(plane, ask, to, ask.model) if to is not None else there), told


def path_of(body: bytes) -> Steps[str]:
    """The path that a body was most likely written for. Each path has a key of its own."""
    try:
        given = yield from members(body, _given)
    except NoObject:
        given = _Given()
    if given.messages is NO_FIELD and given.prompt is not NO_FIELD:
        return "/v1/completions"
    if given.messages is NO_FIELD and given.input is not NO_FIELD:
        return "/v1/responses"
    return "/v1/chat/completions"


def render(ask: Ask, choice: Choice, policy: str | None) -> dict[str, object]:
    """The request as it was understood, and every candidate with its costs in seconds.

    `policy` is the name of the pool's policy.
    """
    return {
        "pool": choice.pool,
        "policy": policy,
        "chosen": choice.chosen,
        "reason": choice.reason,
        "request": {
            "model": ask.model,
            "prompt_tokens": ask.prompt_tokens,
            "expected_output_tokens": round(ask.output_tokens),
            "blocks": len(ask.blocks),
            "session": ask.session is not None,
            "stream": ask.stream,
        },
        "candidates": [_candidate(each) for each in choice.candidates],
    }


def _candidate(candidate: Candidate) -> dict[str, object]:
    part = candidate.part
    return {
        "name": candidate.backend.name,
        "pool": candidate.pool,
        "eligible": not candidate.out,
        "why_not": candidate.out or part.why_not or None,
        "cost_s": round(part.cost_s, 6) if part.cost_s is not None else None,
        "terms": {name: round(term, 6) for name, term in part.terms.items()}
        if part.terms is not None
        else None,
        "cached_tokens": candidate.cached_tokens,
        "to_win": part.to_win or None,
    }


async def _taken(steps: Steps[T]) -> T:
    """Take all steps and return their result. Other work runs between them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)
