"""What the requests of each tenant used since the start, by model."""

from collections.abc import Iterator
from typing import Final

# The most models that are told apart for one tenant. Names that no backend lists are one, too.
MODELS_MAX: Final = 256
OTHER: Final = "other"


class Used:
    """Of one tenant and model: requests that were served, and their tokens."""

    __slots__ = ("cached_tokens", "completion_tokens", "prompt_tokens", "requests")

    def __init__(self, requests: int = 0, prompt: int = 0, cached: int = 0, made: int = 0) -> None:
        self.requests = requests
        self.prompt_tokens = prompt  # with the cached ones
        self.cached_tokens = cached
        self.completion_tokens = made

    def add(self, other: "Used") -> None:
        self.requests += other.requests
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens


class TenantUsage:
    """That of all tenants. Their number is bounded by the configurations of this process.

    `before`: what processes before this one counted, by tenant and model, if that was kept.
    """

    def __init__(self) -> None:
        self.before: dict[tuple[str, str], Used] = {}
        self._used: dict[str, dict[str, Used]] = {}

    def of(self, tenant: str, model: str | None) -> Used:
        """The counts to add to. `model`: None if no backend lists it."""
        models = self._used.setdefault(tenant, {})
        name = model if model is not None and len(models) < MODELS_MAX else OTHER
        if model is not None and model in models:
            name = model
        used = models.get(name)
        if used is None:
            used = models[name] = Used()
        return used

    def totals(self) -> Iterator[tuple[str, str, Used]]:
        """The same with what was counted before."""
        now = {(tenant, model): used for tenant, model, used in self.items()}
        for tenant, model in sorted(now.keys() | self.before.keys()):
            total = Used()
            for part in (now, self.before):
                if (tenant, model) in part:
                    total.add(part[tenant, model])
            yield tenant, model, total

    def items(self) -> Iterator[tuple[str, str, Used]]:
        """Tenant, model and counts, in the order of names."""
        for tenant, models in sorted(self._used.items()):
            for model, used in sorted(models.items()):
                yield tenant, model, used
