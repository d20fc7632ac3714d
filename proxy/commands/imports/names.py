"""Names that penstock takes, made of what other configurations call things."""

import re
from typing import Final

CHARS_MAX: Final = 48


class Names:
    """Names of one kind, each given once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def new(self, wanted: str) -> str:
        """A name like this one that nothing else has."""
        plain = re.sub(r"[^a-zA-Z0-9._-]+", "-", wanted).strip("._-")[:CHARS_MAX] or "unnamed"
        name, number = plain, 2
        while name in self._taken:
            name, number = f"{plain}-{number}", number + 1
        self._taken.add(name)
        return name

    def numbered(self, wanted: str) -> str:
        """A new name that is this one and a number, from 0 on."""
        number = 0
        while f"{wanted}-{number}" in self._taken:
            number += 1
        return self.new(f"{wanted}-{number}")


def variable_of(name: str, suffix: str) -> str:
    """The name of an environment variable for something of this name, such as LLAMA_API_KEY."""
    plain = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")
    return f"{plain if plain[:1].isalpha() else f'POOL_{plain}'}_{suffix}"
