"""Why a route does not match, in words.

Values of headers, users and sessions are never told: they may be secret, or name a person.
"""

from collections.abc import Callable
from typing import Final

from penstock.balancing.routes.match import Match, Patterns
from penstock.balancing.routes.request import RouteRequest
from penstock.balancing.wants import named
from penstock.conf.zones import clock_text

_CHARS_MAX: Final = 80
_LISTED_MAX: Final = 5


# What is said where a request has nothing of the kind.
_ABSENT: Final = {
    "model": "it names no model",
    "tenant": "it has no tenant",
    "effort": "it asks for no effort",
    "label": "it has no label",
    "user": "it names no user",
    "session": "it has no session key",
}


def why_not(match: Match, failed: str, request: RouteRequest) -> str:
    """Why the condition `failed` does not hold."""
    ask = request.ask
    compared = {
        "model": (ask.model, match.models),
        "path": (ask.path, match.paths),
        "tenant": (ask.tenant or None, match.tenants),
        "class": (request.service_class, match.classes),
        "effort": (request.effort, match.efforts),
        "label": (request.label, match.labels),
        "user": (request.user, match.users),
        "session": (request.session, match.sessions),
    }.get(failed)
    if compared is None:
        return _WORDS[failed](match, request)
    value, wanted = compared
    if value is None:
        return _ABSENT[failed]
    if failed in ("user", "session"):
        return f"the {'session key' if failed == 'session' else failed} is not {_or(wanted)}"
    shown = value if failed in ("tenant", "class") else f'"{_clipped(value)}"'
    return f"the {failed} is {shown}, not {_or(wanted)}"


def _of_stream(_: Match, request: RouteRequest) -> str:
    return "it is a stream" if request.ask.stream else "it is no stream"


def _of_tokens(match: Match, request: RouteRequest) -> str:
    tokens, least = request.ask.prompt_tokens, match.tokens_min
    if least is not None and tokens < least:
        return f"its prompt has about {tokens} tokens, fewer than {least}"
    return f"its prompt has about {tokens} tokens, not fewer than {match.tokens_max}"


def _of_needs(match: Match, request: RouteRequest) -> str:
    return f"it does not ask for {_and(match.needs & ~request.needs)}"


def _of_lacks(match: Match, request: RouteRequest) -> str:
    return f"it asks for {_and(match.lacks & request.needs)}"


def _of_headers(match: Match, request: RouteRequest) -> str:
    for name, patterns in match.headers:
        value = request.header(name)
        if value is None:
            return f"there is no header {name.decode()}"
        if not patterns.match(value):
            return f"the header {name.decode()} is not {_or(patterns)}"
    raise AssertionError("all headers match")


def _of_hours(match: Match, request: RouteRequest) -> str:
    assert match.hours is not None
    there = clock_text(match.hours.zone, request.now_s)
    return f"it is {there} in {match.hours.zone}, outside the hours"


_WORDS: Final[dict[str, Callable[[Match, RouteRequest], str]]] = {
    "stream": _of_stream,
    "prompt_tokens": _of_tokens,
    "needs": _of_needs,
    "lacks": _of_lacks,
    "headers": _of_headers,
    "hours": _of_hours,
}


def _and(bits: int) -> str:
    return " and ".join(named(bits))


def _or(names: tuple[str, ...] | frozenset[str] | Patterns | None) -> str:
    assert names is not None
    written = names.written if isinstance(names, Patterns) else names
    listed = sorted(written) if isinstance(written, frozenset) else list(written)
    told = [_clipped(each) for each in listed[:_LISTED_MAX]]
    if len(listed) > _LISTED_MAX:
        told.append(f"one of {len(listed) - _LISTED_MAX} more")
    return " or ".join(told)


def _clipped(text: str) -> str:
    text = text if len(text) <= _CHARS_MAX else text[:_CHARS_MAX] + "..."
    return "".join([char if char.isprintable() else "?" for char in text])
