"""All routes: the first that matches counts, and why the others did not."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeGuard

from penstock.balancing.routes.conditions import Patterns, named
from penstock.balancing.routes.decision import Decision, decided
from penstock.balancing.routes.match import LABEL, MATCHES
from penstock.balancing.routes.request import RouteRequest
from penstock.balancing.routes.rule import Rule
from penstock.balancing.routes.words import why_not


class Index:
    """The numbers of rules by the patterns of one condition, so that nobody looks at all rules."""

    __slots__ = ("_by_prefix", "_by_text", "_lengths")

    def __init__(self) -> None:
        self._by_text: dict[str, list[int]] = {}
        self._by_prefix: dict[str, list[int]] = {}
        self._lengths: tuple[int, ...] = ()  # of the prefixes

    def add(self, patterns: Patterns, number: int) -> None:
        """Have a rule found by these patterns."""
        for text in patterns.exact:
            self._by_text.setdefault(text, []).append(number)
        for prefix in patterns.prefixes:
            self._by_prefix.setdefault(prefix, []).append(number)
        self._lengths = tuple(sorted({len(prefix) for prefix in self._by_prefix}))

    def find(self, text: str | None, found: list[int]) -> None:
        """Add the rules that this text matches to `found`, perhaps one of them twice."""
        if text is None:
            return
        numbers = self._by_text.get(text)
        if numbers is not None:
            found += numbers
        for length in self._lengths:
            if length > len(text):
                return
            numbers = self._by_prefix.get(text[:length])
            if numbers is not None:
                found += numbers


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

    __slots__ = (
        "_by_headers",
        "_by_model",
        "_by_path",
        "_by_tenant",
        "_open",
        "adapters",
        "edits",
        "reads",
        "rules",
    )

    def __init__(
        self,
        rules: Sequence[Rule],
        adapters: Mapping[tuple[str, str | None], str] = MappingProxyType({}),
    ) -> None:
        self.rules = tuple(rules)
        self.adapters = adapters
        # Rules are found by one of their conditions. Only the rest are looked at each time.
        self._by_model = Index()
        self._by_tenant = Index()
        self._by_path = Index()
        self._by_headers: dict[bytes, Index] = {}
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
        self._by_model.find(ask.model, numbers)
        self._by_tenant.find(ask.tenant, numbers)
        self._by_path.find(ask.path, numbers)
        for name, index in self._by_headers.items():
            index.find(request.header(name), numbers)
        numbers.sort()  # runs in order, which takes one pass
        return numbers

    def _file(self, rule: Rule, number: int) -> None:
        """Have a rule found by what tells it best from others."""
        match, models = rule.match, rule.match.models
        if models is not None and not models.prefixes:
            self._by_model.add(models, number)
        elif match.tenants is not None:  # many rules may share a prefix, and few share a tenant
            self._by_tenant.add(Patterns(match.tenants), number)
        elif _tells(models):
            self._by_model.add(models, number)
        elif match.headers:
            name, patterns = match.headers[0]
            self._by_headers.setdefault(name, Index()).add(patterns, number)
        elif _tells(match.paths):
            self._by_path.add(match.paths, number)
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


def _tells(patterns: Patterns | None) -> TypeGuard[Patterns]:
    """Whether these patterns leave some texts out."""
    return patterns is not None and "" not in patterns.prefixes


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
