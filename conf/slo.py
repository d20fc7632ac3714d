"""The settings of service level objectives: what share of requests must be good, and how fast."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Final, Self

from pydantic import Field, model_validator
from pydantic_core import InitErrorDetails

from penstock.conf.kinds import DurationS, Name, Section, fault, refuse

SLOS_MAX: Final = 64
DAY_S: Final = 86_400.0
# A target of 1 leaves no budget, and one near it none that a count of requests could show.
Share = Annotated[float, Field(ge=0.5, le=0.99999, allow_inf_nan=False)]
ErrorRate = Annotated[float, Field(ge=0.00001, le=0.5, allow_inf_nan=False)]


class PercentileSettings(Section):
    """Targets in seconds, by percentile. Give one or more."""

    p50: DurationS | None = Field(default=None, description="Half of the requests are as fast.")
    p90: DurationS | None = Field(default=None, description="90 % of the requests are as fast.")
    p95: DurationS | None = Field(default=None, description="95 % of the requests are as fast.")
    p99: DurationS | None = Field(default=None, description="99 % of the requests are as fast.")

    @model_validator(mode="after")
    def _rise(self) -> Self:
        targets = self.targets
        if not targets:
            raise ValueError("give one or more of p50, p90, p95 and p99")
        for (lower, lower_s), (higher, higher_s) in pairwise(targets):
            if lower_s > higher_s:
                raise ValueError(f"{higher} must be at least {lower}, which is {lower_s:g}")
        return self

    @property
    def targets(self) -> list[tuple[str, float]]:
        """The percentiles that have a target, the lowest first."""
        each = (("p50", self.p50), ("p90", self.p90), ("p95", self.p95), ("p99", self.p99))
        return [(name, target_s) for name, target_s in each if target_s is not None]


class SloSettings(Section):
    """The objectives of one pool and class. Give one or more (docs/slo.md)."""

    pool: Name | None = Field(
        default=None, description="Pool whose requests count. null: those of all pools."
    )
    service_class: Name | None = Field(
        default=None,
        alias="class",
        description="Class whose requests count. null: those of all classes.",
    )
    ttft_s: PercentileSettings | None = Field(
        default=None, description="Time from the whole request to the first token of its stream."
    )
    itl_s: PercentileSettings | None = Field(
        default=None,
        description="Time for each further token of a stream, on average over the request.",
    )
    e2e_s: PercentileSettings | None = Field(
        default=None, description="Time from the whole request to the end of its answer."
    )
    availability: Share | None = Field(
        default=None,
        description="Share of the requests that are served: neither refused for load nor failed.",
    )
    error_rate: ErrorRate | None = Field(
        default=None, description="The largest share of the requests that may fail."
    )
    goodput: Share | None = Field(
        default=None,
        description="Share of the requests that are served and meet all latency targets given here,"
        " of each kind that of the highest percentile.",
    )
    window_s: float = Field(
        default=30 * DAY_S,
        ge=3_600,
        le=90 * DAY_S,
        allow_inf_nan=False,
        description="Time over which the shares count, and for which the error budget is.",
    )

    @model_validator(mode="after")
    def _has_an_objective(self) -> Self:
        latencies = (self.ttft_s, self.itl_s, self.e2e_s)
        timed = [each for each in latencies if each is not None]
        shares = (self.availability, self.error_rate, self.goodput)
        if not timed and not [each for each in shares if each is not None]:
            raise ValueError(
                "give one or more of ttft_s, itl_s, e2e_s, availability, error_rate and goodput"
            )
        if self.goodput is not None and not timed:
            raise ValueError("goodput needs a latency target: give ttft_s, itl_s or e2e_s")
        return self


Slos = Annotated[tuple[SloSettings, ...], Field(strict=False, max_length=SLOS_MAX)]


def check_slos(slos: Sequence[SloSettings], pools: Iterable[str], classes: Iterable[str]) -> None:
    """Refuse unknown pools and classes, and what is given twice. Raises ValidationError.

    `pools`, `classes`: the names that there are. Empty where they are wrong themselves.
    """
    errors: list[InitErrorDetails] = []
    known: Mapping[str, list[str]] = {"pool": list(pools), "class": list(classes)}
    first: dict[tuple[str | None, str | None], int] = {}
    for number, slo in enumerate(slos):
        for key, name in (("pool", slo.pool), ("class", slo.service_class)):
            if name is not None and known[key] and name not in known[key]:
                there_are = ", ".join(known[key][:20])
                problem = f"there is no {key} {name}: there are {there_are}"
                errors.append(fault((number, key), name, problem))
        pair = (slo.pool, slo.service_class)
        if first.setdefault(pair, number) != number:
            problem = f"has the same pool and class as slo[{first[pair]}]: put both in one"
            errors.append(fault((number,), None, problem))
    refuse("slo", errors)
