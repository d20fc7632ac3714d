"""Another program's YAML file, looked into with its lines, so that mistakes are told by them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from penstock.conf.document import UNREAD, read
from penstock.conf.issues import ConfigError, Issue, shown
from penstock.conf.keypath import KeyPath

T = TypeVar("T")
_KINDS: Final = {str: "text", dict: "a mapping", list: "a list", int: "a whole number"}


class YamlSource:
    """The tree of a file. What is of the wrong kind is collected, and told with all the rest."""

    def __init__(self, text: str, file: str) -> None:
        """Raises ConfigError if the text cannot be read."""
        self._file = file
        self._document = read(text)
        self._issues: list[Issue] = []
        for fault in self._document.faults:
            self._issues.append(Issue(f"{file}:{fault.line}", fault.path, fault.problem))
        self.raise_issues()
        if not isinstance(self._document.tree, dict):
            self.refuse((), "the file must be a mapping of keys")
            self.raise_issues()

    def line(self, path: KeyPath) -> int:
        """The line of a key. What is missing has that of what it is missing in."""
        while path and path not in self._document.lines:
            path = path[:-1]
        return self._document.lines.get(path, 1)

    def refuse(self, path: KeyPath, problem: str) -> None:
        """Remember that something is wrong there."""
        self._issues.append(Issue(f"{self._file}:{self.line(path)}", path, problem))

    def raise_issues(self) -> None:
        """Raises ConfigError with all that is wrong."""
        if self._issues:
            raise ConfigError(list(dict.fromkeys(self._issues)))

    def get(self, path: KeyPath) -> Any:
        """The value at a path. None where there is none."""
        value: Any = self._document.tree
        for step in path:
            if isinstance(value, Mapping):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return None
        return None if value is UNREAD else value

    def of_kind(self, path: KeyPath, kind: type[T]) -> T | None:
        """The value at a path if it is of this kind. What is of another kind is wrong."""
        value = self.get(path)
        if value is None:
            return None
        if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
            return value
        self.refuse(path, f"must be {_KINDS[kind]}, got {shown(value, secret=True)}")
        return None

    def keys(self, path: KeyPath) -> list[str]:
        """The keys of the mapping at a path, in their order."""
        return list(self.of_kind(path, dict) or {})

    def entries(self, path: KeyPath) -> Iterator[KeyPath]:
        """The paths of the entries of the list at a path."""
        for index in range(len(self.of_kind(path, list) or [])):
            yield (*path, index)

    def number(self, path: KeyPath, above: float = 0.0) -> float | None:
        """A number that is larger than `above`. Text that spells one counts, as in LiteLLM."""
        value = self.get(path)
        if value is None:
            return None
        try:
            number = float(value) if not isinstance(value, bool) else above
        except (TypeError, ValueError):
            number = above
        if above < number < float("inf"):
            return number
        self.refuse(path, f"must be a number above {above:g}")
        return None
