"""Problems of a configuration, in words for people.

An issue is one line: where the value came from, its key, and the problem. Values are shown
shortened. Secrets and the content of lists and mappings are never shown.
"""

import json
import re
from dataclasses import dataclass, replace
from typing import Final

from penstock.conf.keypath import KeyPath, spell

SHOWN_CHARS_MAX: Final = 60
MASK: Final = "***"


@dataclass(frozen=True, slots=True)
class Issue:
    """One problem to repair. `str()` gives the line to print."""

    where: str
    """`file:line`, `environment PENSTOCK_X`, `flag --x`, or nothing."""
    path: KeyPath
    problem: str

    def as_warning(self) -> str:
        """The line to print if it is not an error."""
        return str(replace(self, problem=f"warning: {self.problem}"))

    def __str__(self) -> str:
        path = tuple(step if isinstance(step, int) else _shortened(step) for step in self.path)
        text = ": ".join(part for part in (self.where, spell(path), self.problem) if part)
        # File names and keys may hold any text. An issue must stay one printable line.
        return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class ConfigError(Exception):
    """The configuration cannot be used. Holds every issue that was found."""

    def __init__(self, issues: list[Issue]) -> None:
        super().__init__(issues)
        self.issues: Final = tuple(issues)

    def __str__(self) -> str:
        return "\n".join(map(str, self.issues))


def shown(value: object, *, secret: bool = False) -> str:
    """A value for a message: short, in YAML's words, and without secrets."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "null"
    if secret:
        return MASK
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # People paste keys into the user part and the query of URLs. A password may hold anything.
        text = re.sub(r"(://|//|:).*@", rf"\1{MASK}@", value, count=1, flags=re.DOTALL)
        text = re.sub(r"(//[^?#]*[?#]).+", rf"\1{MASK}", text, flags=re.DOTALL)
        return json.dumps(_shortened(text), ensure_ascii=not text.isprintable())
    return _shortened(str(value))


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 3] + "..."
