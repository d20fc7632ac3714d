"""Why a route does not match, in words.

Values of headers, users and sessions are never told: they may be secret, or name a person.
"""

from collections.abc import Callable
from typing import Final

from penstock.balancing.routes.conditions import Patterns, named
from penstock.balancing.routes.match import Match
from penstock.balancing.routes.request import RouteRequest
from penstock.conf.zones import clock_text

_CHARS_MAX: Final = 80
_LISTED_MAX: Final = 5


def why_not(match: Match, failed: str, request: RouteRequest) -> str:
    """Why the condition `failed` does not hold."""
    return _WORDS[failed](match, request)


def _of_model(match: Match, request: RouteRequest) -> str:
    model = request.ask.model
    if model is None:
        return "it names no model"
    return f"the model is {_quoted(model)}, not {_any_of(match.models)}"


def _of_path(match: Match, request: RouteRequest) -> str:
    return f"the path is {_quoted(request.ask.path)}, not {_any_of(match.paths)}"


def _of_stream(_: Match, request: RouteRequest) -> str:
    return "it is a stream" if request.ask.stream else "it is no stream"


def _of_tenant(match: Match, request: RouteRequest) -> str:
    tenant = request.ask.tenant
    return f"the tenant is {tenant}, not {_or(match.tenants)}" if tenant else "it has no tenant"


def _of_class(match: Match, request: RouteRequest) -> str:
    return f"the class is {request.service_class}, not {_or(match.classes)}"


def _of_tokens(match: Match, request: RouteRequest) -> str:
    tokens, least = request.ask.prompt_tokens, match.tokens_min
    if least is not None and tokens < least:
        return f"its prompt has about {tokens} tokens, fewer than {least}"
    return f"its prompt has about {tokens} tokens, not fewer than {match.tokens_max}"


def _of_needs(match: Match, request: RouteRequest) -> str:
    return f"it does not ask for {_and(match.needs & ~request.needs)}"


def _of_lacks(match: Match, request: RouteRequest) -> str:
    return f"it asks for {_and(match.lacks & request.needs)}"


def _of_effort(match: Match, request: RouteRequest) -> str:
    if request.effort is None:
        return "it asks for no effort"
    return f"the effort is {_quoted(request.effort)}, not {_or(match.efforts)}"


def _of_user(match: Match, request: RouteRequest) -> str:
    return "it names no user" if request.user is None else f"the user is not {_any_of(match.users)}"


def _of_session(match: Match, request: RouteRequest) -> str:
    if request.session is None:
        return "it has no session key"
    return f"the session key is not {_any_of(match.sessions)}"


def _of_headers(match: Match, request: RouteRequest) -> str:
    for name, patterns in match.headers:
        value = request.header(name)
        if value is None:
            return f"there is no header {name.decode()}"
        if not patterns.match(value):
            return f"the header {name.decode()} is not {_any_of(patterns)}"
    raise AssertionError("all headers match")


def _of_hours(match: Match, request: RouteRequest) -> str:
    assert match.hours is not None
    there = clock_text(match.hours.zone, request.now_s)
    return f"it is {there} in {match.hours.zone}, outside the hours"


def _of_label(match: Match, request: RouteRequest) -> str:
    if request.label is None:
        return "it has no label"
    return f"the label is {_quoted(request.label)}, not {_or(match.labels)}"


_WORDS: Final[dict[str, Callable[[Match, RouteRequest], str]]] = {
    "model": _of_model,
    "path": _of_path,
    "stream": _of_stream,
    "tenant": _of_tenant,
    "class": _of_class,
    "prompt_tokens": _of_tokens,
    "needs": _of_needs,
    "lacks": _of_lacks,
    "effort": _of_effort,
    "user": _of_user,
    "session": _of_session,
    "headers": _of_headers,
    "hours": _of_hours,
    "label": _of_label,
}


def _and(bits: int) -> str:
    return " and ".join(named(bits))


def _any_of(patterns: Patterns | None) -> str:
    assert patterns is not None
    return _or(patterns.written)


def _or(names: "tuple[str, ...] | frozenset[str] | None") -> str:
    assert names is not None
    listed = sorted(names) if isinstance(names, frozenset) else list(names)
    told = [_clipped(each) for each in listed[:_LISTED_MAX]]
    if len(listed) > _LISTED_MAX:
        told.append(f"one of {len(listed) - _LISTED_MAX} more")
    return " or ".join(told)


def _quoted(text: str) -> str:
    return f'"{_clipped(text)}"'


def _clipped(text: str) -> str:
    text = text if len(text) <= _CHARS_MAX else text[:_CHARS_MAX] + "..."
    return "".join([char if char.isprintable() else "?" for char in text])
