"""Where requests go by their routes: decided once, and again when the target cannot serve.

A route changes what backends are sent: the model, the length of the answer, members and headers.
An answer is passed on untouched, so it names the model that answered, as OpenAI's own aliases do.
`x-penstock-model` tells it, too.
"""

from typing import Final

import msgspec

from penstock.balancing.ask import Ask
from penstock.balancing.routes.decision import Decision
from penstock.balancing.routes.request import ReadHeader, RouteRequest
from penstock.balancing.routes.rule import Changes, Target
from penstock.balancing.routes.way import Way
from penstock.balancing.tokens import NOTHING
from penstock.balancing.wants import Wants
from penstock.proxy.data.degrading import cap
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request
from penstock.proxy.data.service_classes import ASKED
from penstock.proxy.errors.client import RouteRefused, UnsplitForm
from penstock.proxy.wire.edit import Edits, begun_with

_MODEL: Final = b"model"
_NOTHING: Final = Wants()


def route_request(plane: DataPlane, ask: Ask, header: ReadHeader, draw: int) -> RouteRequest:
    """A request as routes see it. `draw`: random bits."""
    classes, wants = plane.classes, ask.wants or _NOTHING
    rank = classes.rank_of(ask.tenant, header(ASKED), ask.service_tier)
    return RouteRequest(
        ask,
        header,
        service_class=classes.names[rank],
        user=wants.user,
        needs=wants.needs,
        effort=wants.effort,
        now_s=plane.wall(),
        draw=draw,
    )


def is_routed(ask: Ask) -> bool:
    """Whether routes count for it. What asks for a stored response goes to who has it."""
    return not ask.first_pool and (ask.response_id is None or ask.engine)


def route(plane: DataPlane, request: Request) -> None:
    """Decide where the request goes. Without a route that matches: by its model alone.

    Raises RouteRefused.
    """
    ask = request.ask
    if not is_routed(ask):
        return
    asked = route_request(plane, ask, request.head.get, plane.rng.getrandbits(64))
    decision = plane.routes.decide(asked)
    if decision is None:
        return
    rule, record = decision.rule, request.record
    record.route = rule.name
    if decision.target is None:
        plane.metrics.route_requests.add(rule.name, "refused")
        raise RouteRefused(rule.refusal)
    way = request.way = Way(_kept_at_owner(plane, decision, ask), ask.model)
    if rule.canary and way.decision is decision:
        way.drawn = True
        plane.canaries.begun(way, ask.client, asked.hashed_key(rule.sticky))
    if rule.changes is not None:
        _change(request, rule.changes)
    _go(plane, request, way.target)


def falls_back(plane: DataPlane, request: Request, cause: str) -> bool:
    """Aim the request at the next fall-back that is meant for this cause. False: there is none."""
    way, record = request.way, request.record
    if way is None or not way.fall_back(cause):
        return False
    record.fell_back = f"{record.fell_back},{cause}" if record.fell_back else cause
    _go(plane, request, way.target)
    return True


def _kept_at_owner(plane: DataPlane, decision: Decision, ask: Ask) -> Decision:
    """The decision for the target that has the stored response which it goes on from."""
    if ask.response_id is None:
        return decision
    owner = plane.gate.owners.find(ask.response_id, plane.now())
    for backend in plane.fleet.backends if owner is not None else ():
        if backend.name == owner:
            for target in decision.rule.targets:
                if target.pool == backend.pool:
                    return Decision(decision.rule, target, decision.mirrored)
    return decision


def aimed(plane: DataPlane, ask: Ask, target: Target, asked: str | None) -> Ask:
    """The request as the target gets it. `asked`: the model that its client asked for."""
    model = target.model if target.model is not None else asked
    if model == ask.model:
        return ask.changed(pool=target.pool)
    if ask.measured == NOTHING:
        return ask.changed(pool=target.pool, model=model)
    tokens = plane.estimator.estimate(model, ask.measured, ask.media_parts, ask.counted, ask.client)
    return ask.sized(tokens, pool=target.pool, model=model)


def _go(plane: DataPlane, request: Request, target: Target) -> None:
    """Aim the request at a target."""
    before, way = request.ask, request.way
    assert way is not None
    ask = request.ask = aimed(plane, before, target, way.asked)
    if ask.model == before.model:
        return
    assert ask.model is not None
    if request.is_form:
        _name_in_form(request, ask.model)
    else:
        others: Edits = tuple([edit for edit in request.edits if edit[0] != _MODEL])
        request.edits = (*others, (_MODEL, msgspec.json.encode(ask.model)))


def _name_in_form(request: Request, model: str) -> None:
    """Put another model in a multipart form. Raises UnsplitForm if it has none to replace."""
    span = request.ask.model_span
    if span is None:
        raise UnsplitForm
    name = model.encode()
    begin, end = span
    request.replace_body(request.body[:begin] + name + request.body[end:])
    request.ask = request.ask.changed(model_span=(begin, begin + len(name)))


def _change(request: Request, changes: Changes) -> None:
    """What the route changes for all its targets."""
    if changes.max_tokens is not None:
        cap(request, changes.max_tokens)
    if changes.defaults and request.body and not request.is_form:
        request.replace_body(begun_with(request.body, changes.defaults))
    if changes.headers:
        head, names = request.head, frozenset([name for name, _ in changes.headers])
        head.headers = [each for each in head.headers if each[0] not in names]
        head.headers += changes.headers
        head.nominated -= names  # a client cannot have them dropped
