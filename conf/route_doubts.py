"""Finds routes that are valid but probably a mistake."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from penstock.conf.keypath import KeyPath
from penstock.conf.route_match import HoursSettings, MatchSettings, PromptTokensSettings
from penstock.conf.routes import RouteSettings
from penstock.conf.settings import Settings
from penstock.conf.zones import WEEK_MINUTES

_ALWAYS: Final = (1 << WEEK_MINUTES) - 1
Conditions = Mapping[str, Any]


def conditions(match: MatchSettings) -> Conditions:
    """The conditions by the names of their fields, without those that always hold."""
    given = {name: getattr(match, name) for name in type(match).model_fields}
    tokens, hours = match.prompt_tokens, match.hours
    if tokens is not None and not tokens.min and tokens.max is None:
        given["prompt_tokens"] = None
    if hours is not None and hours.minutes == _ALWAYS:
        given["hours"] = None
    return {name: value for name, value in given.items() if value is not None}


def covers(earlier: Conditions, later: Conditions) -> bool:
    """Whether whatever matches `later` matches `earlier`, too. It is sound: yes is never wrong. It
    may say no where only the values of all requests could tell, such as for all classes in a list.
    """
    if not earlier.keys() <= later.keys():
        return False
    return all(_COVERS[name](given, later[name]) for name, given in earlier.items())


class CoverIndex:
    """Finds the first of many conditions that cover others, without a look at each of them.

    To cover others, a list of patterns must have one for their first: that itself, or a prefix of
    it. So conditions are kept by the patterns of one of their lists.
    """

    def __init__(self) -> None:
        self._by_pattern: dict[tuple[str, str], list[int]] = {}
        self._without: list[int] = []
        self._kept: dict[int, Conditions] = {}

    def add(self, number: int, given: Conditions) -> None:
        """Keep conditions under a number that rises."""
        self._kept[number] = given
        lists = list(_lists(given))
        for name, patterns in lists[:1]:
            for pattern in set(patterns):
                self._by_pattern.setdefault((name, pattern), []).append(number)
        if not lists:
            self._without.append(number)

    def covering(self, later: Conditions) -> int | None:
        """The lowest number of those that cover `later`."""
        found = list(self._without)
        for name, (first, *_) in _lists(later):
            text = first.removesuffix("*")
            for pattern in {first, *(text[:length] + "*" for length in range(len(text) + 1))}:
                found += self._by_pattern.get((name, pattern), ())
        for number in sorted(found):
            if covers(self._kept[number], later):
                return number
        return None


def _lists(given: Conditions) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The conditions that are lists of patterns or words, those of headers by header."""
    for name in ("model", "tenant", "user", "session", "path", "service_class", "effort", "label"):
        if name in given:
            yield name, given[name]
    for name, pattern in given.get("headers", {}).items():
        yield f"header {name}", (pattern,)


def _patterns_cover(earlier: tuple[str, ...], later: tuple[str, ...]) -> bool:
    prefixes = tuple([each[:-1] for each in earlier if each.endswith("*")])
    return all(each in earlier or each.removesuffix("*").startswith(prefixes) for each in later)


def _headers_cover(earlier: Mapping[str, str], later: Mapping[str, str]) -> bool:
    return earlier.keys() <= later.keys() and all(
        _patterns_cover((pattern,), (later[name],)) for name, pattern in earlier.items()
    )


def _tokens_cover(earlier: PromptTokensSettings, later: PromptTokensSettings) -> bool:
    if (later.min or 0) < (earlier.min or 0):
        return False
    return earlier.max is None or (later.max is not None and later.max <= earlier.max)


def _hours_cover(earlier: HoursSettings, later: HoursSettings) -> bool:
    # Two zones are never compared: their distance changes with the seasons.
    return later.zone == earlier.zone and not later.minutes & ~earlier.minutes


def _one_of(earlier: tuple[str, ...], later: tuple[str, ...]) -> bool:
    return set(later) <= set(earlier)


def _all_of(earlier: tuple[str, ...], later: tuple[str, ...]) -> bool:
    return set(earlier) <= set(later)


def _same(earlier: bool, later: bool) -> bool:
    return earlier == later


_COVERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "model": _patterns_cover,
    "path": _patterns_cover,
    "user": _patterns_cover,
    "session": _patterns_cover,
    "headers": _headers_cover,
    "tenant": _one_of,
    "service_class": _one_of,
    "effort": _one_of,
    "label": _one_of,
    "needs": _all_of,
    "lacks": _all_of,
    "stream": _same,
    "prompt_tokens": _tokens_cover,
    "hours": _hours_cover,
}


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
