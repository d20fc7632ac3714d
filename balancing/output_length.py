"""Predicts how long an answer will be from earlier answers of its class.

The finest class with enough samples decides: tenant, model, path and the size of the client's
limit; then tenant and model; then model. The length of the prompt does not matter: in published
traces it does not correlate with the output (-0.37 to 0.07).

Only a new tenant is judged by what is usual for a model. That is the median over the tenants'
means, so that no tenant decides for all by sending many answers or long ones.
"""

from typing import Final

from penstock.balancing.fair_table import FairTable, put_last

# Before anything is known. Four published traces have means of 137 to 343 tokens.
PRIOR_TOKENS: Final = 256.0
SAMPLES_MIN: Final = 30
# About the last hundred answers count. One that is longer than this many times the mean of its
# class (at first the prior) counts as that long. Not twice: with one of eight backends always
# reporting nonsense, the mean would drift without end.
FADE: Final = 0.99
SURPRISE_MAX: Final = 5.0
# There may be many tenants and models, and clients name the models. Beyond this number a tenant's
# classes that were not used for longest go; for models the same.
CLASSES_MAX: Final = 4_096
MODELS_MAX: Final = 256
NAME_MAX: Final = 256
# How many tenants, the last ones, tell what is usual for a model. Below the minimum the prior
# stands in for the missing ones.
HEARD_MAX: Final = 31
HEARD_MIN: Final = 5

Class = tuple[str, ...]


class _Mean:
    """A mean in which old samples fade."""

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
    """What is usual for a model, by the means of its tenants."""

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}
        self.tokens = PRIOR_TOKENS

    def hear(self, tenant: str, tokens: float) -> None:
        """Note the present mean of a tenant's answers."""
        put_last(self._heard, tenant, tokens, HEARD_MAX)
        heard = list(self._heard.values())
        voices = sorted(heard + [PRIOR_TOKENS] * (HEARD_MIN - len(heard)))
        self.tokens = voices[(len(voices) - 1) // 2]


class OutputLength:
    """Learns the mean length of answers for each class."""

    def __init__(self) -> None:
        self._classes: FairTable[_Mean] = FairTable(CLASSES_MAX)  # by tenant
        self._models: dict[str, _Usual] = {}

    def expect(self, tenant: str, model: str | None, path: str, max_tokens: int | None) -> float:
        """The expected tokens of an answer, at least 1, at most the client's limit."""
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
        """Learn from an answer that is whole."""
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
        """The mean of a tenant's class. The class counts as used now."""
        mean = self._classes.use(tenant, each)
        if mean is None:
            mean = _Mean()
            self._classes.put(tenant, each, mean)
        return mean


def _classes(model: str | None, path: str, max_tokens: int | None) -> tuple[Class, Class]:
    """The classes of a request, the finer one first. Limits are grouped by powers of two."""
    name = (model or "")[:NAME_MAX]
    size = str((max_tokens or 0).bit_length())
    return (name, path, size), (name,)
