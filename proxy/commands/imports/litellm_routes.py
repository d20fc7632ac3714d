"""Routes for LiteLLM's names: aliases, servers of several pools, fall-backs and defaults."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from penstock.conf.kinds import PATTERN
from penstock.conf.routes import CAUSES, FALLBACKS_MAX, TARGETS_MAX
from penstock.proxy.commands.imports.yaml_source import Place
from penstock.proxy.commands.imports.yaml_text import Lost, Names, Part

# LiteLLM falls back on every error, after its own retries.
_ANY: Final = ("no_backend", "overload", "errors")
_SECTIONS: Final = ("router_settings", "litellm_settings")
Target = tuple[str, str]
"""A pool, and the model that is sent there."""


@dataclass
class Server:
    """A server that answers for a name."""

    group: str
    """The name that clients ask for."""
    model: str
    """The name that it gets."""
    url: str
    line: int
    key: str | None = None
    """The environment variable with its key, or the key itself: it is never written."""
    name: str | None = None
    weight: float | None = None
    max_requests: int | None = None
    defaults: dict[str, Any] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)


@dataclass
class _Group:
    """One name that clients ask for, and the places that answer for it or instead of it."""

    name: str
    targets: dict[Target, float] = field(default_factory=dict)
    aliases: list[str] = field(default_factory=list)
    fallbacks: dict[Target, set[str]] = field(default_factory=dict)
    servers: list[Server] = field(default_factory=list)
    remarks: Part = field(default_factory=Part)

    @property
    def defaults(self) -> dict[str, Any]:
        """What all of its servers get where the client gave nothing."""
        first = self.servers[0].defaults
        return first if all(each.defaults == first for each in self.servers) else {}

    def takes(self, name: str) -> bool:
        """Whether it stands for all names that begin so."""
        return self.name.endswith("*") and name.startswith(self.name[:-1])


Groups = dict[str, _Group]


def routes_of(root: Place, pools: Mapping[str, Sequence[list[Server]]]) -> list[Part]:
    """All routes, and what could not become one."""
    groups, remarks, names = _groups(pools), Part(), Names()
    _read_aliases(root, groups, remarks)
    _read_fallbacks(root, groups, remarks, "fallbacks", _ANY)
    _read_fallbacks(root, groups, remarks, "context_window_fallbacks", ("context",))
    for section in _SECTIONS:
        wanted = root[section]["default_fallbacks"]
        for group in groups.values():
            if not set(_ANY) & set().union(*group.fallbacks.values()):
                _add(groups, group, wanted.line, wanted.of_kind(list) or (), _ANY)
    # The first route that matches counts: what a prefix would take, too, comes before it.
    needed = [each for each in groups.values() if _needs_route(each, groups.values())]
    needed.sort(key=lambda each: -len(each.name) if each.name.endswith("*") else float("-inf"))
    return [remarks, *[_route(each, names) for each in needed]]


def _groups(pools: Mapping[str, Sequence[list[Server]]]) -> Groups:
    """All names, with the pools that answer for them."""
    groups: Groups = {}
    for pool, servers in pools.items():
        for each in chain.from_iterable(servers):
            group = groups.setdefault(each.group, _Group(each.group))
            place = (pool, each.model)
            if place not in group.targets and len(group.targets) == TARGETS_MAX:
                why = f"A route has at most {TARGETS_MAX} targets, and each key and model is one"
                group.remarks.lose(each.line, f"a server of {each.group}", why)
                continue
            group.targets[place] = group.targets.get(place, 0.0) + (each.weight or 1.0)
            group.servers.append(each)
            if each.defaults != group.servers[0].defaults:
                names = ", ".join(each.defaults) or "no defaults"
                told = f"what this entry gives its server ({names})"
                why = "All servers of a name get the same defaults here"
                group.remarks.lose(each.line, told, why)
    return groups


def _needs_route(group: _Group, groups: Collection[_Group]) -> bool:
    """Whether it is not simply the model of one pool."""
    (_, model), *others = group.targets
    return bool(
        (others or model != group.name or group.aliases or group.fallbacks)
        or (group.defaults or group.remarks.lines)
        or any(each.takes(group.name) for each in groups)
        or any(
            place[1] == group.name and place not in group.targets
            for each in groups
            for place in each.targets
        )
    )


def _read_aliases(root: Place, groups: Groups, remarks: Part) -> None:
    for alias in root["router_settings"]["model_group_alias"].members:
        name = alias["model"].value if isinstance(alias.value, dict) else alias.value
        why = ""
        if not isinstance(name, str):
            alias.refuse("must be the name of a model, or a mapping with `model`")
        elif alias.name in groups:
            why = "There is a model of this name, too"
        elif name not in groups:
            why = f"No pool serves {name}"
        elif not re.fullmatch(PATTERN, alias.name) or alias.name.endswith("*"):
            why = "Names of models have no spaces and no *"
        else:
            groups[name].aliases.append(alias.name)
        if why:
            remarks.lose(alias.line, f"the alias {alias.name}", why)


def _read_fallbacks(
    root: Place, groups: Groups, remarks: Part, kind: str, causes: Sequence[str]
) -> None:
    """A list of mappings from a name to the names that follow it."""
    lists = [each for section in _SECTIONS for each in root[section][kind].entries]
    for wanted in chain.from_iterable([each.members for each in lists]):
        name, names = wanted.name, wanted.of_kind(list) or []
        if name != "*" and name not in groups:
            why = "No model_name that penstock serves is so"
            remarks.lose(wanted.line, f"{kind} of {name}", why)
        for group in groups.values():
            if not group.fallbacks if name == "*" else group.name == name:
                _add(groups, group, wanted.line, names, causes)


def _add(
    groups: Groups, group: _Group, line: int, names: Sequence[Any], causes: Sequence[str]
) -> None:
    for name in names:
        if not isinstance(name, str):
            group.remarks.lose(line, "the fall-back one that changes the request")
            continue
        if name not in groups:
            group.remarks.lose(line, f"the fall-back {name}", "No pool serves it")
            continue
        for place in groups[name].targets:
            if set(group.targets) == {place}:
                continue  # it has been tried when it would be its turn
            if place not in group.fallbacks and len(group.fallbacks) == FALLBACKS_MAX:
                why = f"A route has at most {FALLBACKS_MAX}"
                group.remarks.lose(line, f"the fall-back {name}", why)
                break
            group.fallbacks.setdefault(place, set()).update(causes)


def _route(group: _Group, names: Names) -> Part:
    weighs = len(group.targets) > 1
    part, asked = Part(), [group.name, *group.aliases]
    part.lines += group.remarks.lines
    part.put(
        name=names.new(group.name),
        match=Part(model=asked if group.aliases else group.name),
        to=[
            Part(pool=pool, weight=weight if weighs else None, model=model)
            for (pool, model), weight in group.targets.items()
        ],
    )
    fallbacks = [
        Part(pool=pool, model=model, on=None if on == {*CAUSES} else sorted(on, key=CAUSES.index))
        for (pool, model), on in group.fallbacks.items()
    ]
    changes = {"body": {"defaults": group.defaults}}
    part.put(fallbacks=fallbacks or None, set=changes if group.defaults else None)
    return part
