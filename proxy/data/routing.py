"""Where requests go by their routes: decided once, and again when the target cannot serve.

An answer is passed on untouched, so it names the model that answered, as OpenAI's own aliases do.
`x-penstock-model` tells it, too, as far as it is known when the head goes out: the head of a stream
that waits long goes first. Nothing is sent after it: no SDK shows comments to its user.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.balancing.adapters import NotLoaded
from penstock.balancing.admission.queued_request import QueuedRequest
from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.canary.steps import Draw
from penstock.balancing.computed_prompts import OverContext
from penstock.balancing.routes.decision import Decision, Target, Way, spilled
from penstock.balancing.routes.request import ReadHeader, RouteRequest
from penstock.balancing.tokens import NOTHING
from penstock.balancing.wants import Wants
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request
from penstock.proxy.data.route_changes import change, name_model
from penstock.proxy.data.service_classes import ASKED, queue_of
from penstock.proxy.errors.client import RouteRefused

_NOTHING: Final = Wants()


def route_request(
    plane: DataPlane, ask: Ask, header: ReadHeader, draw: int, label: str | None = None
) -> RouteRequest:
    """A request as routes see it. `draw`: random bits. `label`: None if it has none, or not yet."""
    classes, wants = plane.classes, ask.wants or _NOTHING
    rank = classes.rank_of(ask.tenant, header(ASKED), ask.service_tier)
    return RouteRequest(
        ask,
        header,
        service_class=classes.names[rank],
        user=wants.user,
        needs=wants.needs,
        effort=wants.effort,
        label=label,
        now_s=plane.wall(),
        draw=draw,
    )


def is_routed(ask: Ask) -> bool:
    """Whether routes count for it. What asks for a stored response goes to who has it."""
    return not ask.first_pool and (ask.response_id is None or ask.engine)


def route(plane: DataPlane, request: Request) -> None:
    """Decide where the request goes. Without a route that matches: by its model alone.

    Raises RouteRefused, and FormWithoutModel.
    """
    ask = request.ask
    if not is_routed(ask):
        return
    draw = plane.rng.getrandbits(64)
    asked = route_request(plane, ask, request.head.get, draw, request.label)
    decision = plane.routes.decide(asked)
    if decision is None:
        return
    rule = decision.rule
    request.record.route = rule.name
    if decision.target is None:
        plane.metrics.route_requests.add(rule.name, "refused")
        raise RouteRefused(rule.refusal)
    if rule.spill:
        decision = cheapest(plane, decision, ask, asked.service_class)
    way = request.way = way_of(plane, decision, ask)
    trial = plane.canaries.trials.get(rule.name) if rule.canary and not way.stays else None
    if trial is not None:
        way.draw = Draw(trial.canary, ask, asked.hashed_key(rule.sticky))
    if rule.changes is not None:
        change(request, rule.changes)
    _go(plane, request, first=True)


def falls_back(plane: DataPlane, request: Request, cause: str, to: Target | None = None) -> bool:
    """Aim the request at `to`, or at the next fall-back for this cause that can serve.

    False: there is none. Raises FormWithoutModel.
    """
    way, record = request.way, request.record
    to = to or next_fallback(plane, request.ask, way, cause)
    if way is None or to is None or not way.fall_back(cause, to):
        return False
    record.fell_back = f"{record.fell_back},{cause}" if record.fell_back else cause
    _go(plane, request, first=False)
    return True


def next_fallback(plane: DataPlane, ask: Ask, way: Way | None, cause: str) -> Target | None:
    """The next fall-back for this cause that can serve, at least as a last resort."""
    able = able_fallback(plane, ask, way, cause)
    return able or able_fallback(plane, ask, way, cause, doubted=True)


def fallbacks_ahead(plane: DataPlane, ask: Ask, way: Way | None, cause: str) -> Iterator[Ask]:
    """The request as each fall-back would get it, in the order in which it may go to them.

    After the first one, the cause is overload: a fall-back that can serve is left for that only.
    """
    if way is None:
        return
    ahead = Way(way.decision, way.asked, step=way.step, stays=way.stays)
    while (to := next_fallback(plane, ask, ahead, cause)) is not None:
        yield aimed(plane, ask, to, way.asked)
        ahead.fall_back(cause, to)
        cause = "overload"


def able_fallback(
    plane: DataPlane,
    ask: Ask,
    way: Way | None,
    cause: str,
    *,
    beside: str | None = None,
    doubted: bool = False,
) -> Target | None:
    """The next fall-back for this cause that can serve now, or load its adapter.

    `beside`: not one in this pool. `doubted`: one whose backends are out, but may be able.
    """
    if way is None:
        return None
    for target in way.fallbacks(cause):
        if target.pool != beside and _is_able(plane, ask, target, way.asked, doubted=doubted):
            return target
    return None


def _is_able(
    plane: DataPlane, ask: Ask, target: Target, asked: str | None, *, doubted: bool
) -> bool:
    """Whether a backend of this target can serve the request now and takes prompts as long, or
    loads its adapter. Where none is fit, that is seen without a copy of the request."""
    model = _model_of(target, asked)
    fit = [
        each for each in _members(plane, target.pool) if (each.last_resort if doubted else each.fit)
    ]
    if not fit:
        return False
    there = aimed(plane, ask, target, asked)
    able = [each for each in fit if each.serves(model)]
    if not able:
        return loads(plane, there)
    return not plane.gate.computed_prompts.is_too_long(there, able)


def _model_of(target: Target, asked: str | None) -> str | None:
    """The model that it is sent. `asked`: by its client."""
    return target.model if target.model is not None else asked


def is_served(plane: DataPlane, ask: Ask) -> bool:
    """Whether a backend of its pool can serve it, or loads its adapter."""
    members = _members(plane, ask.pool)
    able = [each for each in members if each.can_serve and each.serves(ask.model)]
    return bool(able) or loads(plane, ask)


def _members(plane: DataPlane, name: str | None) -> Sequence[Backend]:
    for pool in plane.fleet.pools:
        if pool.name == name:
            return pool.backends
    return ()


def loads(plane: DataPlane, ask: Ask) -> bool:
    try:
        return plane.adapters.foreseen(ask, plane.now()).waits
    except (NotLoaded, OverContext):
        return False


def costs_less_elsewhere(plane: DataPlane, request: Request, rank: int) -> bool:
    """Whether its route has a fall-back for overload where the request costs less now.

    Not while requests wait there: they are that pool's own, and would wait for longer.
    """
    way, ask = request.way, request.ask
    target = able_fallback(plane, request.ask, request.way, "overload")
    if way is None or target is None:
        return False
    queue = plane.admission.pools.get(target.pool)
    if queue is not None and queue.queue.waiting:
        return False
    there = aimed(plane, ask, target, way.asked)
    return _cost_s(plane, there, rank) < _cost_s(plane, ask, rank)


def cheapest(plane: DataPlane, decision: Decision, ask: Ask, service_class: str) -> Decision:
    """The decision of a route with `spill`, for the target that costs least now.

    Canaries are compared by who comes to them, so the load must not choose that.
    """
    if decision.rule.canary or ask.response_id is not None:
        return decision
    rank = plane.classes.names.index(service_class)
    return spilled(decision, lambda to: _cost_s(plane, aimed(plane, ask, to, ask.model), rank))


def _cost_s(plane: DataPlane, ask: Ask, rank: int) -> float:
    """What the request would cost where it is aimed. inf: it would not be served there."""
    classes, now_s = plane.classes, plane.now()
    name = ask.tenant or queue_of(ask.client, plane.salt)
    request = QueuedRequest(ask, now_s, nobody, name, rank, classes.max_wait_s[rank], dry=True)
    return plane.pool_costs.cost_s(request, now_s)


def nobody(outcome: object) -> None:
    """A dry request is told nothing."""


def aimed(plane: DataPlane, ask: Ask, target: Target, asked: str | None) -> Ask:
    """A copy of the request as the target gets it. `asked`: the model that its client asked for."""
    there = ask.changed()
    _aim(plane, there, target, asked)
    return there


def _aim(plane: DataPlane, ask: Ask, target: Target, asked: str | None) -> bool:
    """Aim the request itself at a target. True: it is another model than before."""
    ask.pool = target.pool
    model = _model_of(target, asked)
    if model == ask.model:
        return False
    ask.model = model
    if ask.generates:
        ask.output_tokens = plane.outputs.expect(ask.client, model, ask.path, ask.max_tokens)
    if ask.measured != NOTHING:
        ask.resize(
            plane.estimator.estimate(model, ask.measured, ask.media_parts, ask.counted, ask.client)
        )
    return True


def _go(plane: DataPlane, request: Request, *, first: bool) -> None:
    """Aim the request at the target that its way has come to. `first`: nobody else holds its ask
    yet, so it needs no copy, which takes longer than all the rest."""
    way = request.way
    assert way is not None
    ask = request.ask if first else request.ask.changed()
    if _aim(plane, ask, way.target, way.asked):
        name_model(request, ask)
    request.ask = ask


def way_of(plane: DataPlane, decision: Decision, ask: Ask) -> Way:
    """The way that a request begins with. One that goes on from a stored response stays where
    that is: nobody else knows it."""
    if ask.response_id is None:
        return Way(decision, ask.model)
    owner = plane.gate.owners.find(ask.response_id, plane.now())
    for backend in plane.fleet.backends if owner is not None else ():
        if backend.name == owner:
            return _way_to(decision, backend.pool, ask.model)
    return Way(decision, ask.model, stays=True)


def _way_to(decision: Decision, pool: str, asked: str | None) -> Way:
    """The way to the target, or the fall-back, of this pool."""
    rule, target = decision.rule, decision.target
    if target is None or target.pool != pool:
        target = next((each for each in rule.targets if each.pool == pool), target)
    decision = Decision(rule, target, decision.mirrored)
    if target is not None and target.pool != pool:
        for number, fallback in enumerate(rule.fallbacks):
            if fallback.target.pool == pool:
                return Way(decision, asked, step=number + 1, stays=True)
    return Way(decision, asked, stays=True)
