"""How long an answer will be: what answers of its kind were.

By the finest class that has been seen often enough: tenant, model, path and the size of the
client's own limit; then tenant and model; then model. Not by the prompt's length: in published
traces the two are not correlated (-0.37 to 0.07).
"""

from typing import Final

# Before anything is known; four published traces have means of 137 to 343 tokens.
PRIOR_TOKENS: Final = 256.0
SAMPLES_MIN: Final = 30
# About the last hundred count, and one that is this much longer than its class for that much.
FADE: Final = 0.99
SURPRISE_MAX: Final = 10.0
# Tenants and models may be many, models are named by clients: past this many those go that were
# not seen for longest.
CLASSES_MAX: Final = 4_096
NAME_MAX: Final = 256

Class = tuple[str, ...]


class _Mean:
    """A fading mean."""

    __slots__ = ("_sum", "_weight", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self._sum = 0.0
        self._weight = 0.0

    @property
    def tokens(self) -> float:
        return self._sum / self._weight

    def observe(self, tokens: float) -> None:
        if self.samples >= SAMPLES_MIN:
            tokens = min(tokens, SURPRISE_MAX * self.tokens)
        self.samples += 1
        self._sum = self._sum * FADE + tokens
        self._weight = self._weight * FADE + 1.0


class OutputLength:
    """Learns the mean length of answers, class by class."""

    def __init__(self) -> None:
        self._classes: dict[Class, _Mean] = {}

    def expect(self, tenant: str, model: str | None, path: str, max_tokens: int | None) -> float:
        """Tokens of an answer, at least 1, at most what the client allows."""
        tokens = PRIOR_TOKENS
        for each in _classes(tenant, model, path, max_tokens):
            mean = self._classes.get(each)
            if mean is not None and mean.samples >= SAMPLES_MIN:
                tokens = max(1.0, mean.tokens)
                break
        return tokens if max_tokens is None else min(tokens, float(max_tokens))

    def observe(
        self, tenant: str, model: str | None, path: str, max_tokens: int | None, tokens: float
    ) -> None:
        """Learn from an answer that came whole."""
        for each in _classes(tenant, model, path, max_tokens):
            mean = self._classes.pop(each, None) or _Mean()
            if len(self._classes) >= CLASSES_MAX:
                del self._classes[next(iter(self._classes))]
            self._classes[each] = mean
            mean.observe(tokens)


def _classes(
    tenant: str, model: str | None, path: str, max_tokens: int | None
) -> tuple[Class, Class, Class]:
    """From the finest to the coarsest. Limits belong together by powers of two."""
    name = (model or "")[:NAME_MAX]
    size = str((max_tokens or 0).bit_length())
    return (tenant, name, path, size), (tenant, name), (name,)
