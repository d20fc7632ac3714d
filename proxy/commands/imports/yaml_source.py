"""Another program's YAML file, looked into with its lines, so that mistakes are told by them."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from penstock.conf.document import Document, read
from penstock.conf.issues import ConfigError, Issue, shown
from penstock.conf.keypath import KeyPath
from penstock.proxy.commands.imports.yaml_text import Lost

T = TypeVar("T")
_KINDS: Final[dict[type, str]] = {str: "text", dict: "a mapping", list: "a list"}


@dataclass(frozen=True)
class Place:
    """A place in the file. What is of the wrong kind is collected in `issues`, for all places."""

    file: str
    document: Document
    issues: list[Issue]
    path: KeyPath
    value: Any
    """None where there is nothing."""

    def __getitem__(self, key: str) -> "Place":
        inside = self.value if isinstance(self.value, dict) else {}
        return self._at(key, inside.get(key))

    def _at(self, step: str | int, value: Any) -> "Place":
        return replace(self, path=(*self.path, step), value=value)

    @property
    def name(self) -> str:
        return str(self.path[-1])

    @property
    def line(self) -> int:
        """The line of its key. What is missing has that of what it is missing in."""
        path = self.path
        while path and path not in self.document.lines:
            path = path[:-1]
        return self.document.lines.get(path, 1)

    def refuse(self, problem: str) -> None:
        """Remember that something is wrong here."""
        self.issues.append(Issue(f"{self.file}:{self.line}", self.path, problem))

    def of_kind(self, kind: type[T]) -> T | None:
        """The value if it is of this kind. What is of another kind is wrong."""
        if self.value is None or isinstance(self.value, kind):
            return self.value
        self.refuse(f"must be {_KINDS[kind]}, got {shown(self.value, secret=True)}")
        return None

    def raise_issues(self) -> None:
        """Raises ConfigError with all that is wrong in the file."""
        if self.issues:
            raise ConfigError(list(dict.fromkeys(self.issues)))

    @property
    def text(self) -> str | None:
        return self.of_kind(str)

    @property
    def members(self) -> list["Place"]:
        """The values of a mapping, in their order."""
        return [self[name] for name in self.of_kind(dict) or ()]

    @property
    def entries(self) -> list["Place"]:
        """The entries of a list."""
        return [self._at(*each) for each in enumerate(self.of_kind(list) or ())]

    @property
    def number(self) -> float | None:
        """A number above 0. Text that spells one counts, as in LiteLLM."""
        if self.value is None:
            return None
        try:
            number = 0.0 if isinstance(self.value, bool) else float(self.value)
        except (TypeError, ValueError):
            number = 0.0
        if 0.0 < number < float("inf"):
            return number
        self.refuse("must be a number above 0")
        return None

    def others(
        self, read: Collection[str], why: Mapping[str, str], prefix: str = ""
    ) -> Iterator[Lost]:
        """The keys of a mapping that are not read. Only numbers are told: text may be a secret."""
        for each in self.members:
            if each.name not in read and each.value is not None:
                is_told = isinstance(each.value, int | float)
                told = f": {str(each.value).lower()}" if is_told else ""
                yield each.line, f"{prefix}{each.name}{told}", why.get(each.name, "")


def places_of(text: str, file: str) -> Place:
    """The whole file. Raises ConfigError if the text cannot be read."""
    document = read(text)
    issues = [Issue(f"{file}:{each.line}", each.path, each.problem) for each in document.faults]
    root = Place(file, document, issues, (), document.tree)
    if not issues and not isinstance(root.value, dict):
        root.refuse("the file must be a mapping of keys")
    root.raise_issues()
    return root
