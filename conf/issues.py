"""What is wrong with a configuration, told to people.

An issue is one line: where the value came from, its key, what is wrong with it. Values are
shown shortened; a secret and what a list or mapping holds are never shown.
"""

import json
import re
from dataclasses import dataclass, replace
from typing import Final

from conf.keypath import KeyPath, spell

SHOWN_CHARS_MAX: Final = 60
MASK: Final = "***"


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing to repair; `str()` of it is the line to print."""

    where: str
    """`file:line`, `environment PENSTOCK_X`, `flag --x`, or nothing."""
    path: KeyPath
    problem: str

    def as_warning(self) -> str:
        """The line to print where it is no error."""
        return str(replace(self, problem=f"warning: {self.problem}"))

    def __str__(self) -> str:
        path = tuple(step if isinstance(step, int) else _shortened(step) for step in self.path)
        text = ": ".join(part for part in (self.where, spell(path), self.problem) if part)
        # File names and keys are anybody's text: one issue stays one printable line.
        return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class ConfigError(Exception):
    """The configuration cannot be used; holds every issue that was found."""

    def __init__(self, issues: list[Issue]) -> None:
        super().__init__(issues)
        self.issues: Final = tuple(issues)

    def __str__(self) -> str:
        return "\n".join(map(str, self.issues))


def shown(value: object, *, secret: bool = False) -> str:
    """Spell a value for a message: short, in YAML's words, and nothing that may be secret."""
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
        # Credentials and queries of URLs are where keys are pasted.
        text = re.sub(r"(//)[^/@]*@", rf"\1{MASK}@", value)
        text = re.sub(r"(//[^?#]*[?#]).+", rf"\1{MASK}", text, flags=re.DOTALL)
        return json.dumps(_shortened(text), ensure_ascii=not text.isprintable())
    return _shortened(str(value))


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS_MAX else text[: SHOWN_CHARS_MAX - 3] + "..."
