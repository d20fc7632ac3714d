"""The configuration while it is put together: plain data, the origin of each part, the issues.

Layers are put on top of each other, beginning with the weakest. A mapping merges into the one
below. Anything else replaces it. This module does not know which keys exist. The settings refuse
unknown keys, and the origins then tell where they came from.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from penstock.conf.document import is_unicode, read
from penstock.conf.issues import ConfigError, Issue
from penstock.conf.keypath import KeyPath, spell, wants_text
from penstock.conf.settings import Settings

_LAYERS: Final = ("file", "env", "flag")
# An issue, after its place in the order of all issues.
_Noted = tuple[tuple[int, int], Issue]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from."""

    layer: Literal["file", "env", "flag"]
    name: str
    """The name of the file, the variable or the flag."""
    line: int = 0

    def __str__(self) -> str:
        return f"file:{self.line}" if self.layer == "file" else f"{self.layer} {self.name}"

    @property
    def where(self) -> str:
        """The beginning of an issue."""
        if self.layer == "file":
            return f"{self.name}:{self.line}"
        return f"{'environment' if self.layer == 'env' else 'flag'} {self.name}"


class Draft:
    """The layers merged so far."""

    def __init__(self) -> None:
        self.tree: dict[str, object] = {}
        self.origins: dict[KeyPath, Origin] = {}
        self._issues: list[_Noted] = []
        self._doubts: list[_Noted] = []

    def put(self, path: KeyPath, value: object, origin: Origin) -> None:
        """Put `value` at `path`. An IndexError names the index that a list would accept."""
        if isinstance(value, dict):
            self._container(path, dict, origin)
            for key, item in value.items():
                self.put((*path, key), item, origin)
            return
        parent = self._container(path[:-1], _holder_of(path[-1]), origin)
        if _child(parent, path[-1]) is not None:
            self._forget(path)
        _set(parent, path, value)
        self._remember(path, value, origin)

    def get(self, path: KeyPath) -> object:
        """The value at `path`, None where there is none."""
        node: object = self.tree
        for step in path:
            node = _child(node, step)
        return node

    def has(self, path: KeyPath) -> bool:
        """Whether there is a key at `path`, also one with the value null."""
        node = self.get(path[:-1])
        return isinstance(node, dict) and path[-1] in node

    def remove(self, path: KeyPath) -> None:
        """Take out the key at `path`, which is there."""
        node = self.get(path[:-1])
        assert isinstance(node, dict)
        del node[path[-1]]
        self._forget(path)

    def origin_of(self, path: KeyPath) -> Origin | None:
        """The origin of `path`. For a missing key the origin of what contains it."""
        for length in range(len(path), -1, -1):
            if origin := self.origins.get(path[:length]):
                return origin
        return None

    def report(self, path: KeyPath, problem: str, origin: Origin | None = None) -> None:
        """Note an issue with the value at `path`, or with what `origin` says."""
        self._issues.append(self._noted(path, problem, origin))

    def doubt(self, path: KeyPath, problem: str) -> None:
        """Note that the value at `path` is probably a mistake."""
        self._doubts.append(self._noted(path, problem, None))

    @property
    def doubts(self) -> tuple[Issue, ...]:
        """The doubts, in the order of the file."""
        return _in_order(self._doubts)

    @property
    def refused(self) -> bool:
        """Whether there is an issue."""
        return bool(self._issues)

    def raise_issues(self) -> None:
        """Raise a ConfigError with all issues, if there are any."""
        if self._issues:
            raise ConfigError(list(_in_order(self._issues)))

    def _noted(self, path: KeyPath, problem: str, origin: Origin | None) -> "_Noted":
        origin = origin or self.origin_of(path)
        issue = Issue(origin.where if origin else "", path, problem)
        return (_LAYERS.index(origin.layer), origin.line) if origin else (0, 0), issue

    def _container(self, path: KeyPath, kind: type, origin: Origin) -> object:
        """The container at `path`. It is made if there is none of this kind."""
        node: object = self.tree
        kinds = [*map(_holder_of, path[1:]), kind][: len(path)]
        for length, (step, wanted) in enumerate(zip(path, kinds, strict=True), start=1):
            child = _child(node, step)
            if not isinstance(child, wanted):
                child = wanted()
                _set(node, path[:length], child)
                self._forget(path[:length])
                self.origins[path[:length]] = origin
            node = child
        return node

    def _forget(self, path: KeyPath) -> None:
        for known in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[known]

    def _remember(self, path: KeyPath, value: object, origin: Origin) -> None:
        self.origins[path] = origin
        if isinstance(value, dict | list):
            steps = value.items() if isinstance(value, dict) else enumerate(value)
            for step, item in steps:
                self._remember((*path, step), item, origin)


def _in_order(noted: list[_Noted]) -> tuple[Issue, ...]:
    issues = (issue for _, issue in sorted(noted, key=lambda entry: entry[0]))
    return tuple(dict.fromkeys(issues))


def _holder_of(step: str | int) -> type:
    return list if isinstance(step, int) else dict


def _child(node: object, step: str | int) -> object:
    if isinstance(node, dict):
        return node.get(step)
    if isinstance(node, list) and isinstance(step, int) and step < len(node):
        return node[step]
    return None


def _set(node: object, path: KeyPath, value: object) -> None:
    step = path[-1]
    if isinstance(node, dict):
        node[step] = value
        return
    assert isinstance(node, list)
    assert isinstance(step, int)
    if step > len(node):
        raise IndexError(f"the next index of {spell(path[:-1])} is {len(node)}")
    node[step : step + 1] = [value]


PREFIX: Final = "PENSTOCK_"
# The path of the configuration file. The caller reads it.
NOT_SETTINGS: Final = frozenset({"PENSTOCK_CONFIG"})
# Kubernetes sets such variables in every pod for a Service named penstock or penstock-x.
_SERVICE_LINK: Final = re.compile(
    r"PENSTOCK_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)


def put_environment(draft: Draft, environ: Mapping[str, str]) -> None:
    """Put every PENSTOCK_ variable at the path in its name.

    `PENSTOCK_LISTEN__PORT=9000` sets `listen.port`, `PENSTOCK_POOLS__0__POLICY=random` sets
    `pools[0].policy`. A key for text takes the value unchanged (empty or `null`: none). Any other
    key reads it as YAML, so `PENSTOCK_PATHS='["GET /x"]'` works.
    """
    named = [
        (_path_of(name), name)
        for name in environ
        if name.startswith(PREFIX) and not _is_foreign(name, environ[name])
    ]
    # Containers before their parts, and list entries in order.
    named.sort(key=lambda entry: (len(entry[0]), [str(step).zfill(8) for step in entry[0]]))
    for path, name in named:
        origin = Origin("env", name)
        if not is_unicode(name):
            draft.report((), "the name of the variable is not valid Unicode", origin)
        else:
            _put_text(draft, path, environ[name], origin)


def put_flags(draft: Draft, flags: Mapping[str, object]) -> None:
    """Put the flags. None means that a flag was not given.

    `backends` replaces all pools by one pool named default. `policy` applies to every pool.
    """
    given = {key: value for key, value in flags.items() if value is not None}
    if urls := given.pop("backends", None):
        _put_backends(draft, urls)
    policy = given.pop("policy", None)
    pools = draft.get(("pools",))
    for index, pool in enumerate(pools if isinstance(pools, list) else ()):
        if policy is not None and isinstance(pool, dict):
            draft.put(("pools", index, "policy"), policy, Origin("flag", "--policy"))
    for key, value in given.items():
        origin = Origin("flag", _flag_of(key))
        path = tuple(key.split("."))
        if isinstance(value, str):
            _put_text(draft, path, value, origin)
        else:
            draft.put(path, value, origin)


def _put_text(draft: Draft, path: KeyPath, text: str, origin: Origin) -> None:
    value: object = text
    if wants_text(Settings, path):
        value = None if text in ("", "null", "~") else text
    else:
        document = read(text)
        for fault in document.faults:
            draft.report((*path, *fault.path), fault.problem, origin)
        value = document.tree
    try:
        draft.put(path, value, origin)
    except IndexError as error:
        draft.report(path, str(error), origin)


def _put_backends(draft: Draft, urls: object) -> None:
    origin = Origin("flag", "--backend")
    pools = urls
    if isinstance(urls, list | tuple):
        backends = [{"name": f"b{index}", "url": url} for index, url in enumerate(urls)]
        pools = [{"name": "default", "backends": backends}]
    draft.put(("pools",), pools, origin)


def _path_of(name: str) -> KeyPath:
    return tuple(
        int(step) if re.fullmatch(r"[0-9]{1,6}", step) else step
        for step in name.removeprefix(PREFIX).lower().split("__")
    )


def _is_foreign(name: str, value: str) -> bool:
    if name in NOT_SETTINGS:
        return True
    # PENSTOCK_PORT=9000 is a user's mistake. Kubernetes' variable of this name is a URL.
    is_url = not name.endswith("_PORT") or name.endswith("_SERVICE_PORT") or "://" in value
    return "__" not in name and is_url and _SERVICE_LINK.fullmatch(name) is not None


def _flag_of(key: str) -> str:
    return "--" + re.sub(r"[._]", "-", key.removeprefix("listen."))
