"""Whether one route's conditions take every request that another one's take.

It is sound: yes is never wrong. It may say no where only the values of all requests could tell,
such as for all classes in a list.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from penstock.conf.route_match import HoursSettings, MatchSettings, PromptTokensSettings
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
    """Whether whatever matches `later` matches `earlier`, too."""
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
