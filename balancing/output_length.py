"""How long an answer will be: what answers of its kind were.

By the finest class that has been seen often enough: tenant, model, path and the size of the
client's own limit; then tenant and model; then model. Not by the prompt's length: in published
traces the two are not correlated (-0.37 to 0.07).

Only who is new is judged by what is usual with a model: the middle of what is usual with each
tenant, so that none of them decides for all, by however many answers or long ones.
"""

from typing import Final

from balancing.fair_table import FairTable

# Before anything is known; four published traces have means of 137 to 343 tokens.
PRIOR_TOKENS: Final = 256.0
SAMPLES_MIN: Final = 30
# About the last hundred count, and one that is this much longer than its class, or at first than
# the prior, for that much. Not for twice as much: of eight backends one that always tells nonsense
# would draw the mean away without end.
FADE: Final = 0.99
SURPRISE_MAX: Final = 5.0
# Tenants and models may be many, models are named by clients: past this many a tenant's own go that
# were not seen for longest; of models those.
CLASSES_MAX: Final = 4_096
MODELS_MAX: Final = 256
NAME_MAX: Final = 256
# Tenants of a model that are heard for what is usual with it, the last ones; where there are fewer
# than the least, the prior speaks for those that are missing.
HEARD_MAX: Final = 31
HEARD_MIN: Final = 5

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
        usual = self.tokens if self.samples else PRIOR_TOKENS
        if self.samples < SAMPLES_MIN:
            usual = max(usual, PRIOR_TOKENS)
        tokens = min(tokens, SURPRISE_MAX * usual)
        self.samples += 1
        self._sum = self._sum * FADE + tokens
        self._weight = self._weight * FADE + 1.0


class _Usual:
    """What is usual with a model, by its tenants."""

    __slots__ = ("_heard", "tokens")

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}
        self.tokens = PRIOR_TOKENS

    def hear(self, tenant: str, tokens: float) -> None:
        """The mean of a tenant's answers is so much now."""
        heard = self._heard
        heard.pop(tenant, None)
        heard[tenant] = tokens
        if len(heard) > HEARD_MAX:
            del heard[next(iter(heard))]
        voices = sorted(list(heard.values()) + [PRIOR_TOKENS] * (HEARD_MIN - len(heard)))
        self.tokens = voices[(len(voices) - 1) // 2]


class OutputLength:
    """Learns the mean length of answers, class by class."""

    def __init__(self) -> None:
        self._classes: FairTable[_Mean] = FairTable(CLASSES_MAX)  # by tenant
        self._models: dict[str, _Usual] = {}

    def expect(self, tenant: str, model: str | None, path: str, max_tokens: int | None) -> float:
        """Tokens of an answer, at least 1, at most what the client allows."""
        finer, coarser = _classes(model, path, max_tokens)
        mean = self._classes.find(tenant, finer)
        if mean is None or mean.samples < SAMPLES_MIN:
            mean = self._classes.find(tenant, coarser)
        if mean is not None and mean.samples >= SAMPLES_MIN:
            tokens = max(1.0, mean.tokens)
        else:
            usual = self._models.get(coarser[0])
            tokens = PRIOR_TOKENS if usual is None else max(1.0, usual.tokens)
        return tokens if max_tokens is None else min(tokens, float(max_tokens))

    def observe(
        self, tenant: str, model: str | None, path: str, max_tokens: int | None, tokens: float
    ) -> None:
        """Learn from an answer that came whole."""
        if max_tokens is not None:
            tokens = min(tokens, float(max_tokens))
        finer, coarser = _classes(model, path, max_tokens)
        self._mean_of(tenant, finer).observe(tokens)
        mean = self._mean_of(tenant, coarser)
        mean.observe(tokens)
        usual = self._models.pop(coarser[0], None) or _Usual()
        if len(self._models) >= MODELS_MAX:
            del self._models[next(iter(self._models))]
        self._models[coarser[0]] = usual
        if mean.samples <= SAMPLES_MIN or not mean.samples % SAMPLES_MIN:
            usual.hear(tenant, mean.tokens)

    def _mean_of(self, tenant: str, each: Class) -> _Mean:
        """A class of the tenant's that is seen now."""
        mean = self._classes.use(tenant, each)
        if mean is None:
            mean = _Mean()
            self._classes.put(tenant, each, mean)
        return mean


def _classes(model: str | None, path: str, max_tokens: int | None) -> tuple[Class, Class]:
    """Of a tenant, the finer first. Limits belong together by powers of two."""
    name = (model or "")[:NAME_MAX]
    size = str((max_tokens or 0).bit_length())
    return (name, path, size), (name,)
