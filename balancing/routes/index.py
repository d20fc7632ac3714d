"""Which rules may match, found by the texts that they name, so that nobody looks at all of them."""

from penstock.balancing.routes.patterns import Patterns


class Index:
    """The numbers of rules by the patterns of one condition."""

    __slots__ = ("_by_prefix", "_by_text", "_lengths")

    def __init__(self) -> None:
        self._by_text: dict[str, list[int]] = {}
        self._by_prefix: dict[str, list[int]] = {}
        self._lengths: tuple[int, ...] = ()  # of the prefixes

    def add(self, patterns: Patterns, number: int) -> None:
        """Have a rule found by these patterns."""
        for text in patterns.exact:
            self._by_text.setdefault(text, []).append(number)
        for prefix in patterns.prefixes:
            self._by_prefix.setdefault(prefix, []).append(number)
        self._lengths = tuple(sorted({len(prefix) for prefix in self._by_prefix}))

    def find(self, text: str | None, found: list[int]) -> None:
        """Add the rules that this text matches to `found`, perhaps one of them twice."""
        if text is None:
            return
        numbers = self._by_text.get(text)
        if numbers is not None:
            found += numbers
        for length in self._lengths:
            if length > len(text):
                return
            numbers = self._by_prefix.get(text[:length])
            if numbers is not None:
                found += numbers
