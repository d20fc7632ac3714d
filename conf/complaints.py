"""Turns pydantic's errors into key paths and problems, in words for people.

A problem says what is allowed and what was given. For a misspelt key or word it also says what was
probably meant.
"""

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.conf.document import UNREAD
from penstock.conf.issues import shown
from penstock.conf.keypath import KeyPath, is_secret, keys_at, type_at
from penstock.conf.kinds import SHAPES
from penstock.conf.settings import Settings
from penstock.conf.units import allowed, unit_of

_WANTED: Final = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "tuple_type": "must be a list",
    "model_type": "must be a mapping of keys",
    "finite_number": "must be a finite number",
    "string_unicode": "must be valid Unicode",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be empty",
    "too_short": "must have at least {min_length} entry",
    "too_long": "must have at most {max_length} entries",
    "literal_error": "must be one of {expected}",
}
_NO_CLIENT_CA: Final = (
    "nothing verifies them: name the authority that issues them in listen.tls.client_ca_file"
)


def complaints(
    refusal: ValidationError, given: Callable[[KeyPath], object]
) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path and the problem of each error. Leave out those reported elsewhere.

    `given` returns what was written at a path, with its unit.
    """
    for error in refusal.errors(include_url=False):
        kind, value = error["type"], error["input"]
        if kind == "extra_forbidden":
            yield error["loc"], _unknown_key(error["loc"])
        elif kind == "missing":
            yield error["loc"], "is required"
        elif value is UNREAD or kind == "repeated_name":
            continue  # reported already, with its line
        elif kind == "too_short" and value:
            continue  # the list has entries, and they were refused
        elif kind == "no_client_ca":
            yield (*error["ctx"]["at"], "certificates"), _NO_CLIENT_CA
        else:
            yield error["loc"], _refused(error, given(error["loc"]))


def _unknown_key(path: KeyPath) -> str:
    allowed = keys_at(Settings, path[:-1])
    if meant := get_close_matches(str(path[-1]), allowed, n=1):
        return f"unknown key; did you mean {meant[0]}?"
    return f"unknown key; allowed here: {', '.join(allowed)}"


def _refused(error: ErrorDetails, given: object) -> str:
    kind, value, path = error["type"], error["input"], error["loc"]
    unit = unit_of(str(path[-1])) if path else None
    if unit is not None and isinstance(given, str):
        value = given
    context: Mapping[str, object] = error.get("ctx", {})
    if kind == "value_error":
        wanted = str(context["error"])
        if value is None or isinstance(value, dict | list | tuple):
            return wanted
    elif kind == "string_pattern_mismatch":
        wanted = SHAPES[str(context["pattern"])]
    elif unit is not None and kind in ("int_type", "float_type"):
        wanted = f"must be {allowed(unit)}"
    elif kind in _WANTED:
        wanted = _WANTED[kind].format_map({key: _bound(bound) for key, bound in context.items()})
        if kind in ("too_short", "too_long"):
            return wanted
    else:
        return error["msg"]
    return f"{wanted}, got {shown(value, secret=_may_be_secret(path, value))}{_hint(error)}"


def _bound(bound: object) -> str:
    return f"{bound:.15g}" if isinstance(bound, float) else str(bound)


def _may_be_secret(path: KeyPath, value: object) -> bool:
    """Whether the value may be a secret: one itself, or one written where a mapping belongs."""
    if is_secret(Settings, path):
        return True
    inside: list[KeyPath] = [(*path, key) for key in keys_at(Settings, path)]
    if isinstance(value, str):
        inside += _items_at(path)
    return any(_may_be_secret(each, value) for each in inside)


def _items_at(path: KeyPath) -> list[KeyPath]:
    """The path of an entry of the list at `path`. None when no list belongs there."""
    return [(*path, 0)] if type_at(Settings, (*path, 0)) is not None else []


def _hint(error: ErrorDetails) -> str:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "string_type" and isinstance(value, int | float):
        return "; put it in quotes"
    if kind in ("int_type", "float_type") and isinstance(value, str) and _is_number(value):
        return "; remove the quotes"
    if kind == "tuple_type" and isinstance(value, str):
        return "; put it in [ ]"
    if kind == "model_type" and value is None:
        return "; put keys under it or remove it"
    if kind == "model_type" and isinstance(error["loc"][-1], int):  # an entry of a list
        return f"; its keys are {', '.join(keys_at(Settings, error['loc']))}"
    if kind == "literal_error" and isinstance(value, str):
        words = [word.strip("' ") for word in context["expected"].replace(" or ", ",").split(",")]
        meant = get_close_matches(value, words, n=1)
        return f"; did you mean {meant[0]}?" if meant else ""
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
