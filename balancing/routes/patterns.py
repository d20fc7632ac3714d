"""Exact texts, and prefixes that end in a star."""

from collections.abc import Iterable


class Patterns:
    """Several patterns. Text matches if one of them does, and no text matches none."""

    __slots__ = ("exact", "prefixes", "written")

    def __init__(self, written: Iterable[str]) -> None:
        self.written = tuple(written)
        self.exact = frozenset([each for each in self.written if not each.endswith("*")])
        self.prefixes = tuple([each[:-1] for each in self.written if each.endswith("*")])

    def match(self, text: str | None) -> bool:
        """Whether one of them matches."""
        if text is None:
            return False
        return text in self.exact or text.startswith(self.prefixes)
