"""Routes for LiteLLM's names: aliases, servers of several pools, fall-backs and defaults."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.conf.keypath import KeyPath
from penstock.conf.routes import CAUSES, FALLBACKS_MAX, TARGETS_MAX
from penstock.proxy.commands.imports.litellm_models import is_model
from penstock.proxy.commands.imports.litellm_pools import Pool
from penstock.proxy.commands.imports.names import Names
from penstock.proxy.commands.imports.part import Part
from penstock.proxy.commands.imports.yaml_source import YamlSource

# LiteLLM falls back on every error, after its own retries.
_ANY: Final = ("no_backend", "overload", "errors")
_CONTEXT: Final = ("context",)
_SECTIONS: Final = ("router_settings", "litellm_settings")
Place = tuple[str, str]
"""A pool, and the model that is sent there."""


@dataclass
class Group:
    """One name that clients ask for."""

    name: str
    targets: dict[Place, float] = field(default_factory=dict)
    """Who answers for it, with their weights."""
    aliases: list[str] = field(default_factory=list)
    fallbacks: dict[Place, set[str]] = field(default_factory=dict)
    """Who answers when these cannot, and for what, in order."""
    defaults: tuple[tuple[str, Any], ...] = ()
    lost: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def is_prefix(self) -> bool:
        """Whether it stands for all names that begin so."""
        return self.name.endswith("*")


def groups_of(pools: Sequence[Pool]) -> dict[str, Group]:
    """All names, with the pools that answer for them."""
    groups: dict[str, Group] = {}
    defaults: dict[str, list[tuple[tuple[str, Any], ...]]] = {}
    for pool in pools:
        for each in pool.deployments:
            group = groups.setdefault(each.group, Group(each.group))
            place = (pool.name, each.model)
            if place not in group.targets and len(group.targets) == TARGETS_MAX:
                why = f"A route has at most {TARGETS_MAX} targets, and each key and model is one"
                group.lost.append((each.line, f"a server of {each.group}", why))
                continue
            group.targets[place] = group.targets.get(place, 0.0) + (each.weight or 1.0)
            defaults.setdefault(each.group, []).append(each.defaults)
            if each.defaults != defaults[each.group][0]:
                names = ", ".join([name for name, _ in each.defaults]) or "no defaults"
                why = "All servers of a name get the same defaults here"
                group.lost.append((each.line, f"what this entry gives its server ({names})", why))
    for name, group in groups.items():
        if len(set(defaults[name])) == 1:
            group.defaults = defaults[name][0]
    return groups


class Router:
    """Reads what LiteLLM's settings say of the names, and writes the routes."""

    def __init__(self, source: YamlSource, groups: dict[str, Group]) -> None:
        self._source = source
        self._groups = groups
        self._lost: list[tuple[int, str, str]] = []

    def routes(self) -> list[Part]:
        """All routes, and what could not become one."""
        self._read_aliases()
        for kind, causes in (("fallbacks", _ANY), ("context_window_fallbacks", _CONTEXT)):
            self._read_fallbacks(kind, causes)
        self._read_default_fallbacks()
        remarks = Part()
        for lost in self._lost:
            remarks.lost(*lost)
        names = Names()
        # The first route that matches counts: what a prefix would take, too, comes before it.
        needed = [each for each in self._groups.values() if self._needs_route(each)]
        needed.sort(key=lambda each: (each.is_prefix, -len(each.name) * each.is_prefix))
        return [remarks, *[self._route(each, names) for each in needed]]

    def _needs_route(self, group: Group) -> bool:
        """Whether it is not simply the model of one pool."""
        (_, model), *others = group.targets
        same = [
            each
            for each in self._groups.values()
            for place in each.targets
            if place[1] == group.name and place not in group.targets
        ]
        taken = [
            each
            for each in self._groups.values()
            if each.is_prefix and group.name.startswith(each.name[:-1])
        ]
        more = group.aliases or group.fallbacks or group.defaults or group.lost or taken
        return bool(others or model != group.name or same or more)

    def _read_aliases(self) -> None:
        at: KeyPath = ("router_settings", "model_group_alias")
        for alias in self._source.keys(at):
            path, value = (*at, alias), self._source.get((*at, alias))
            name = value.get("model") if isinstance(value, dict) else value
            if not isinstance(name, str):
                self._source.refuse(path, "must be the name of a model, or a mapping with `model`")
            elif alias in self._groups:
                self._lose(path, f"the alias {alias}", "There is a model of this name, too")
            elif name not in self._groups:
                self._lose(path, f"the alias {alias}", f"No pool serves {name}")
            elif not is_model(alias):
                self._lose(path, f"the alias {alias}", "Names of models have no spaces and no *")
            else:
                self._groups[name].aliases.append(alias)

    def _read_fallbacks(self, kind: str, causes: Sequence[str]) -> None:
        for path, name, wanted in self._listed(kind):
            if name == "*":
                for group in self._groups.values():
                    if not group.fallbacks:
                        self._add(group, path, wanted, causes)
            elif name in self._groups:
                self._add(self._groups[name], path, wanted, causes)
            else:
                self._lose(path, f"{kind} of {name}", "No model_name that penstock serves is so")

    def _listed(self, kind: str) -> Iterator[tuple[KeyPath, str, list[Any]]]:
        """The entries of a list of mappings from a name to the names that follow it."""
        for section in _SECTIONS:
            for at in self._source.entries((section, kind)):
                for name in self._source.keys(at):
                    wanted = self._source.of_kind((*at, name), list)
                    if wanted is not None:
                        yield (*at, name), name, wanted

    def _read_default_fallbacks(self) -> None:
        for section in _SECTIONS:
            path: KeyPath = (section, "default_fallbacks")
            wanted = self._source.of_kind(path, list)
            for group in self._groups.values() if wanted else ():
                if not set(_ANY) & set().union(*group.fallbacks.values()):
                    self._add(group, path, wanted or [], _ANY)

    def _add(
        self, group: Group, path: KeyPath, wanted: Sequence[Any], causes: Sequence[str]
    ) -> None:
        for name in wanted:
            if not isinstance(name, str) or name not in self._groups:
                told = name if isinstance(name, str) else "one that changes the request"
                why = "No pool serves it" if isinstance(name, str) else ""
                group.lost.append((self._source.line(path), f"the fall-back {told}", why))
                continue
            for place in self._groups[name].targets:
                if set(group.targets) == {place}:
                    continue  # it has been tried when it would be its turn
                if place not in group.fallbacks and len(group.fallbacks) == FALLBACKS_MAX:
                    why = f"A route has at most {FALLBACKS_MAX}"
                    group.lost.append((self._source.line(path), f"the fall-back {name}", why))
                    break
                group.fallbacks.setdefault(place, set()).update(causes)

    def _lose(self, path: KeyPath, what: str, why: str) -> None:
        self._lost.append((self._source.line(path), what, why))

    def _route(self, group: Group, names: Names) -> Part:
        part = Part()
        for lost in group.lost:
            part.lost(*lost)
        part.put("name", names.new(group.name))
        match, asked = Part(), [group.name, *group.aliases]
        match.put("model", asked if group.aliases else group.name)
        part.put("match", match)
        weighs = len(group.targets) > 1
        part.put(
            "to",
            [_target(place, weight if weighs else None) for place, weight in group.targets.items()],
        )
        if group.fallbacks:
            part.put("fallbacks", [_fallback(*each) for each in group.fallbacks.items()])
        if group.defaults:
            part.put("set", {"body": {"defaults": dict(group.defaults)}})
        return part


def _target(place: Place, weight: float | None) -> Part:
    part = Part()
    part.put("pool", place[0])
    part.put_given(weight=weight)
    part.put("model", place[1])
    return part


def _fallback(place: Place, causes: set[str]) -> Part:
    part = _target(place, None)
    if len(causes) < len(CAUSES):
        part.put("on", [each for each in CAUSES if each in causes])
    return part
