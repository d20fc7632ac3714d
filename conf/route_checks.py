"""Refuses routes that name what does not exist, or that would try the same thing twice."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import InitErrorDetails

from penstock.conf.canary import CanarySettings
from penstock.conf.routes import FallbackSettings, MirrorSettings, RouteSettings, TargetSettings

_NAMES_TOLD: Final = 20
_GIVEN: Final = object()  # a section that is wrong itself is told of there
At = tuple[str | int, ...]
# A place in one route, what was given there, and what is wrong.
_Fault = tuple[At, str | None, str]


def check_routes(routes: Sequence[RouteSettings], settings: Mapping[str, Any]) -> None:
    """Raises ValidationError with all that is wrong.

    `settings`: the sections that are right themselves.
    """
    errors: list[InitErrorDetails] = []
    known: dict[str, list[str] | None] = {
        kind: [each.name for each in settings[section]] if section in settings else None
        for kind, section in (("pool", "pools"), ("tenant", "tenants"))
    }
    known["class"] = None
    if "admission" in settings:
        known["class"] = [each.name for each in settings["admission"].classes]
    first: dict[str, int] = {}
    adapters: dict[tuple[str, str | None], str] = {}
    for number, route in enumerate(routes):
        faults = [*_unknown(route, known), *_repeated(route), *_two_paths(route, adapters)]
        if route.match.label and settings.get("classifier", _GIVEN) is None:
            problem = "nobody gives labels: there is no `classifier`"
            faults.append((("match", "label"), None, problem))
        if first.setdefault(route.name, number) != number:
            there = f"routes[{first[route.name]}]"
            problem = f"route name {route.name!r} is taken by {there}; names must be unique"
            faults.append((("name",), None, problem))
        errors += [_error((number, *at), given, problem) for at, given, problem in faults]
    if errors:
        raise ValidationError.from_exception_data("routes", errors)


def _unknown(route: RouteSettings, known: Mapping[str, list[str] | None]) -> Iterator[_Fault]:
    """Pools, tenants and classes that do not exist."""
    named: list[tuple[At, str, str]] = [
        (("to", index, "pool"), "pool", each.pool) for index, each in enumerate(route.to)
    ]
    for index, fallback in enumerate(route.fallbacks):
        named.append((("fallbacks", index, "pool"), "pool", fallback.pool))
    if route.mirror is not None:
        named.append((("mirror", "pool"), "pool", route.mirror.pool))
    if route.canary is not None:
        named.append((("canary", "pool"), "pool", route.canary.pool))
    for kind, names in (("tenant", route.match.tenant), ("class", route.match.service_class)):
        named += [(("match", kind, index), kind, name) for index, name in enumerate(names or ())]
    for at, kind, name in named:
        there = known[kind]
        if there is not None and name not in there:
            there_are = ", ".join(there[:_NAMES_TOLD]) or "none"
            yield at, name, f"there is no {kind} {name}: there are {there_are}"


def _repeated(route: RouteSettings) -> Iterator[_Fault]:
    """A pool and model that a request would be sent to a second time."""
    targets: set[tuple[str, str | None]] = set()
    for index, target in enumerate(route.to):
        if _place(target) in targets:
            yield ("to", index), None, "is in this list twice: put both in one, with one weight"
        targets.add(_place(target))
    used = {_place(each) for each in route.to if each.weight}
    seen: set[tuple[str, str | None]] = set()
    for index, fallback in enumerate(route.fallbacks):
        at = ("fallbacks", index)
        if used == {_place(fallback)}:
            yield at, None, "is the target itself, which has been tried when it would be its turn"
        if _place(fallback) in seen:
            yield at, None, "is in this list twice: put both in one, with one `on`"
        seen.add(_place(fallback))
    if route.canary is not None and _place(route.canary) in targets:
        yield ("canary",), None, "is a target of this route: there is nothing to compare"
    if route.mirror is not None and _place(route.mirror) in used:
        yield ("mirror",), None, "is a target of this route: it would get its own requests again"


def _two_paths(
    route: RouteSettings, adapters: dict[tuple[str, str | None], str]
) -> Iterator[_Fault]:
    """Adapters of one name and two paths. `adapters`: those of earlier routes, and now its own."""
    for index, target in enumerate(route.to):
        path = target.lora_path
        if path is not None and adapters.setdefault(_place(target), path) != path:
            other = adapters[_place(target)]
            problem = f"the pool {target.pool} has another path for {target.model}: {other}"
            yield ("to", index, "lora_path"), path, problem


def _place(
    each: TargetSettings | FallbackSettings | MirrorSettings | CanarySettings,
) -> tuple[str, str | None]:
    return each.pool, each.model


def _error(at: At, given: str | None, problem: str) -> InitErrorDetails:
    context = {"error": ValueError(problem)}
    return {"type": "value_error", "loc": at, "input": given, "ctx": context}
