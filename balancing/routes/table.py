"""All routes: the first that matches counts, and why the others did not."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.balancing.routes.decision import Decision, decided
from penstock.balancing.routes.match import MATCHES
from penstock.balancing.routes.needs import named
from penstock.balancing.routes.request import RouteRequest
from penstock.balancing.routes.rule import Rule
from penstock.balancing.routes.words import why_not

_NONE: Final[tuple[int, ...]] = ()


class Verdict(NamedTuple):
    """One route in an explanation: whether it was taken, else why not."""

    name: str
    taken: bool
    why_not: str


class RouteTable:
    """Routes in order. Immutable: a reload makes a new one, which decides alike for equal routes.

    `reads` names what rules want to know of a body beyond the usual: needs, `effort`, `user`,
    `session`, and `answer_limits`, which a cap of the answer's length takes.
    """

    __slots__ = ("_by_model", "_by_tenant", "_open", "reads", "rules")

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        # The numbers of the rules by the exact models that they name, else by their tenants. Only
        # the rest are looked at for every request.
        by_model: dict[str, list[int]] = {}
        by_tenant: dict[str, list[int]] = {}
        opened: list[int] = []
        for number, rule in enumerate(self.rules):
            models, tenants = rule.match.models, rule.match.tenants
            if models is not None and not models.prefixes:
                for model in models.exact:
                    by_model.setdefault(model, []).append(number)
            elif tenants is not None:
                for tenant in tenants:
                    by_tenant.setdefault(tenant, []).append(number)
            else:
                opened.append(number)
        self._by_model = {model: tuple(numbers) for model, numbers in by_model.items()}
        self._by_tenant = {tenant: tuple(numbers) for tenant, numbers in by_tenant.items()}
        self._open = tuple(opened)
        self.reads = frozenset([name for rule in self.rules for name in _reads(rule)])

    def decide(self, request: RouteRequest) -> Decision | None:
        """What the first route that matches decides. None: no route does."""
        model = request.ask.model
        of_model = self._by_model.get(model, _NONE) if model is not None else _NONE
        of_tenant = self._by_tenant.get(request.ask.tenant, _NONE)
        numbers: Sequence[int] = of_model + of_tenant + self._open
        if len(numbers) > 1:
            numbers = sorted(numbers)  # three runs in order, which takes one pass
        rules = self.rules
        for number in numbers:
            rule = rules[number]
            if rule.match.first_failed(request) == MATCHES:
                return decided(rule, request)
        return None

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
    if rule.changes is not None and rule.changes.max_tokens is not None:
        found.append("answer_limits")
    return found
