"""Finds routes that are valid but probably a mistake."""

from collections.abc import Iterator
from typing import Final

from penstock.conf.keypath import KeyPath
from penstock.conf.route_cover import CoverIndex, conditions
from penstock.conf.routes import RouteSettings
from penstock.conf.settings import Settings

Doubt = tuple[KeyPath, str]
_Named = tuple[KeyPath, str, str | None]
_NAMES_TOLD: Final = 3


def route_doubts(settings: Settings) -> Iterator[Doubt]:
    """Routes never reached, a classifier never asked, and models that their pool does not serve."""
    yield from _unreachable(settings.routes)
    if settings.classifier is not None and not any(each.match.label for each in settings.routes):
        yield ("classifier",), "is never asked: no route has `label` under `match`"
    served = {pool.name: pool.models for pool in settings.pools if pool.models}
    for number, route in enumerate(settings.routes):
        for at, pool, model in _sent(route):
            missing = _not_served(route, model, served.get(pool, ()))
            if missing:
                told = ", ".join(missing[:_NAMES_TOLD])
                yield (
                    ("routes", number, *at),
                    f"the pool {pool} does not list {told} in its `models`, and probably refuses"
                    " it: `model` gives the name that is sent",
                )


def _unreachable(routes: tuple[RouteSettings, ...]) -> Iterator[Doubt]:
    """Routes whose requests an earlier one takes, all of them."""
    earlier = CoverIndex()
    for number, route in enumerate(routes):
        own = conditions(route.match)
        first = earlier.covering(own)
        if first is not None:
            yield (
                ("routes", number),
                f"is never reached: {routes[first].name}, before it, takes all of its requests",
            )
        earlier.add(number, own)


def _sent(route: RouteSettings) -> Iterator[_Named]:
    """The places in one route that name a pool, with the model that is sent there."""
    for index, target in enumerate(route.to):
        if target.weight and target.lora_path is None:
            yield ("to", index, "model"), target.pool, target.model
    for index, fallback in enumerate(route.fallbacks):
        yield ("fallbacks", index, "model"), fallback.pool, fallback.model
    if route.mirror is not None:
        yield ("mirror", "model"), route.mirror.pool, route.mirror.model


def _not_served(route: RouteSettings, model: str | None, served: tuple[str, ...]) -> list[str]:
    """The names that are sent and that the pool does not serve. `served`: empty if unknown."""
    names = (model,) if model is not None else route.match.model or ()
    if not served:
        return []
    return [
        name
        for name in names
        if not any(
            each.startswith(name[:-1]) if model is None and name.endswith("*") else each == name
            for each in served
        )
    ]
