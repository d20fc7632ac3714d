"""The configuration while it is put together: plain data, the origin of each part, the issues.

Layers are put on top of each other, the weakest first. A mapping merges into the one below,
anything else replaces it. Nothing here knows which keys exist: that is for the settings to say,
and the origins then tell where a refused key came from.
"""

from dataclasses import dataclass
from typing import Final, Literal

from conf.issues import ConfigError, Issue
from conf.keypath import KeyPath, spell

_LAYERS: Final = ("file", "env", "flag")
# An issue, and its place among all.
_Noted = tuple[tuple[int, int], Issue]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from."""

    layer: Literal["file", "env", "flag"]
    name: str
    """Of the file, the variable or the flag."""
    line: int = 0

    def __str__(self) -> str:
        return f"file:{self.line}" if self.layer == "file" else f"{self.layer} {self.name}"

    @property
    def where(self) -> str:
        """How an issue begins."""
        if self.layer == "file":
            return f"{self.name}:{self.line}"
        return f"{'environment' if self.layer == 'env' else 'flag'} {self.name}"


class Draft:
    """Layers merged so far."""

    def __init__(self) -> None:
        self.tree: dict[str, object] = {}
        self.origins: dict[KeyPath, Origin] = {}
        self._issues: list[_Noted] = []
        self._doubts: list[_Noted] = []

    def put(self, path: KeyPath, value: object, origin: Origin) -> None:
        """Put `value` at `path`; an IndexError says which index a list would take."""
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
        """Return what stands at `path`, None where nothing does."""
        node: object = self.tree
        for step in path:
            node = _child(node, step)
        return node

    def origin_of(self, path: KeyPath) -> Origin | None:
        """Return the origin of `path` or, of a missing key, of what encloses it."""
        for length in range(len(path), -1, -1):
            if origin := self.origins.get(path[:length]):
                return origin
        return None

    def report(self, path: KeyPath, problem: str, origin: Origin | None = None) -> None:
        """Note an issue of the value at `path`, or of what `origin` says."""
        self._issues.append(self._noted(path, problem, origin))

    def doubt(self, path: KeyPath, problem: str) -> None:
        """Note that the value at `path` is probably not meant."""
        self._doubts.append(self._noted(path, problem, None))

    @property
    def doubts(self) -> tuple[Issue, ...]:
        """What was doubted, in the order of the file."""
        return _in_order(self._doubts)

    @property
    def refused(self) -> bool:
        """Whether there is an issue."""
        return bool(self._issues)

    def raise_issues(self) -> None:
        """Raise a ConfigError with all issues there are."""
        if self._issues:
            raise ConfigError(list(_in_order(self._issues)))

    def _noted(self, path: KeyPath, problem: str, origin: Origin | None) -> "_Noted":
        origin = origin or self.origin_of(path)
        issue = Issue(origin.where if origin else "", path, problem)
        return (_LAYERS.index(origin.layer), origin.line) if origin else (0, 0), issue

    def _container(self, path: KeyPath, kind: type, origin: Origin) -> object:
        """Return the container at `path`, made where there is none of its kind."""
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
