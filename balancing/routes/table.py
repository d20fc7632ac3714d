"""All routes: the first that matches counts, and why the others did not, in words.

Values of headers, users and sessions are never told: they may be secret, or name a person.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from penstock.balancing.routes.decision import Decision, Rule, decided
from penstock.balancing.routes.match import LABEL, MATCHES, Match, Patterns
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


class Verdict(NamedTuple):
    """One route in an explanation: whether it was taken, else why not."""

    name: str
    taken: bool
    why_not: str


class RouteTable:
    """Routes in order. Immutable: a reload makes a new one, which decides alike for equal routes.

    `reads` names what rules want to know of a body beyond the usual: needs, `effort`, `user`,
    `session`, `label`, and `answer_limits`, which a cap of the answer's length takes. `edits` names
    further members that they may set. `adapters`:
    by pool and model, the paths of those that backends are asked to load.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        adapters: Mapping[tuple[str, str | None], str] = MappingProxyType({}),
    ) -> None:
        self.rules = tuple(rules)
        self.adapters = adapters
        # The numbers of rules that name models or tenants, by these: there may be many. Only the
        # rest are looked at each time.
        self._by_model: dict[str | None, list[int]] = {}
        self._by_tenant: dict[str | None, list[int]] = {}
        self._open: list[int] = []
        for number, rule in enumerate(self.rules):
            self._file(rule, number)
        self.reads = frozenset([name for rule in self.rules for name in _reads(rule)])
        self.edits = frozenset([name for rule in self.rules for name in _edits(rule)])

    def decide(self, request: RouteRequest) -> Decision | None:
        """What the first route that matches decides. None: no route does."""
        for number in self._near(request):
            rule = self.rules[number]
            if rule.match.first_failed(request) == MATCHES:
                return decided(rule, request)
        return None

    def needs_label(self, request: RouteRequest) -> bool:
        """Whether a label would decide. `request` has none yet."""
        for number in self._near(request):
            failed = self.rules[number].match.first_failed(request)
            if failed in (MATCHES, LABEL):
                return failed == LABEL
        return False

    def _near(self, request: RouteRequest) -> list[int]:
        """The numbers of the rules that may match, in order."""
        numbers, ask = list(self._open), request.ask
        numbers += self._by_model.get(ask.model, ())
        numbers += self._by_tenant.get(ask.tenant, ())
        numbers.sort()  # runs in order, which takes one pass
        return numbers

    def _file(self, rule: Rule, number: int) -> None:
        """Have a rule found by what it names, if that is whole."""
        models, tenants = rule.match.models, rule.match.tenants
        if models is not None and not models.prefixes:
            for name in models.exact:
                self._by_model.setdefault(name, []).append(number)
        elif tenants is not None:
            for name in tenants:
                self._by_tenant.setdefault(name, []).append(number)
        else:
            self._open.append(number)

    def explain(self, request: RouteRequest) -> list[Verdict]:
        """Every route in order: which one is taken, and why each other one is not."""
        told: list[Verdict] = []
        winner = ""
        for rule in self.rules:
            failed = rule.match.first_failed(request)
            if failed != MATCHES:
                told.append(Verdict(rule.name, False, why_not(rule.match, failed, request)))
            elif winner:
                told.append(Verdict(rule.name, False, f"it matches, but {winner} comes first"))
            else:
                winner = rule.name
                told.append(Verdict(rule.name, True, ""))
        return told


def _edits(rule: Rule) -> list[str]:
    """The members that a rule may set, apart from those that penstock reads."""
    defaults = rule.changes.defaults if rule.changes is not None else ()
    names = [name.decode() for name, _ in defaults]
    return [*names, "store"] if rule.mirror is not None else names


def _reads(rule: Rule) -> list[str]:
    match = rule.match
    found = named(match.needs | match.lacks)
    held = rule.canary or (rule.split is not None and not rule.split.single)
    held = held or (rule.mirror is not None and rule.mirror.share < 1.0)
    keyed = held and rule.sticky in ("session", "user")
    if match.efforts is not None:
        found.append("effort")
    if match.users is not None or keyed:
        found.append("user")
    if match.sessions is not None or keyed:
        found.append("session")
    if match.labels is not None:
        found.append("label")
    if rule.changes is not None and rule.changes.max_tokens is not None:
        found.append("answer_limits")
    return found
