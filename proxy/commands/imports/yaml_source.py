"""Another program's YAML file, looked into with its lines, so that mistakes are told by them."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, TypeVar

from penstock.conf.document import UNREAD, read
from penstock.conf.issues import ConfigError, Issue, shown
from penstock.conf.keypath import KeyPath
from penstock.proxy.commands.imports.yaml_text import Lost

T = TypeVar("T")
_KINDS: Final[dict[type, str]] = {str: "text", dict: "a mapping", list: "a list"}


class YamlSource:
    """The tree of a file. What is of the wrong kind is collected, and told with all the rest."""

    def __init__(self, text: str, file: str) -> None:
        """Raises ConfigError if the text cannot be read."""
        self._file = file
        self._document = read(text)
        self._issues = [
            Issue(f"{file}:{fault.line}", fault.path, fault.problem)
            for fault in self._document.faults
        ]
        if not self._issues and not isinstance(self._document.tree, dict):
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
        if value is None or isinstance(value, kind):
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

    def number(self, path: KeyPath) -> float | None:
        """A number above 0. Text that spells one counts, as in LiteLLM."""
        value = self.get(path)
        if value is None:
            return None
        try:
            number = 0.0 if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = 0.0
        if 0.0 < number < float("inf"):
            return number
        self.refuse(path, "must be a number above 0")
        return None

    def others(
        self, path: KeyPath, read: Collection[str], why: Mapping[str, str], prefix: str = ""
    ) -> Iterator[Lost]:
        """The keys of a mapping that are not read. Only numbers are told: text may be a secret."""
        for name in self.keys(path):
            value = self.get((*path, name))
            if name not in read and value is not None:
                told = f": {str(value).lower()}" if isinstance(value, int | float) else ""
                yield self.line((*path, name)), f"{prefix}{name}{told}", why.get(name, "")
