"""The settings of a canary: a new version that takes over step by step while it is no worse."""

from itertools import pairwise
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, model_validator

from penstock.conf.kinds import DurationS, Name, Section, Word

STEPS_MAX: Final = 16


def _rise_to_all(steps: tuple[float, ...]) -> tuple[float, ...]:
    for lower, higher in pairwise(steps):
        if lower >= higher:
            raise ValueError(f"each step must be more than the one before: {higher:g} is not")
    if steps[-1] != 100:
        raise ValueError("the last step must be 100")
    return steps


Percent = Annotated[float, Field(ge=0.1, le=100, allow_inf_nan=False)]
Steps = Annotated[
    tuple[Percent, ...],
    Field(strict=False, min_length=2, max_length=STEPS_MAX),
    AfterValidator(_rise_to_all),
]
# Less would take 10,000 requests to show; more is no protection.
Share = Annotated[float, Field(ge=0.002, le=0.5, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=0.1, le=4, allow_inf_nan=False)]


class JudgeSettings(Section):
    """How much worse the new version may be at most. null: that is not compared."""

    errors: Share | None = Field(
        default=0.01,
        description="Failures before the first token: how many more of all requests, as a share.",
    )
    hung: Share | None = Field(
        default=0.03,
        description="Requests that wait far too long for their first token, or their plain answer:"
        " how many more of all that do not fail, as a share.",
    )
    broken: Share | None = Field(
        default=0.01,
        description="Answers that break off: how many more of all answers, as a share.",
    )
    empty: Share | None = Field(
        default=0.01,
        description="Answers without a token: how many more of all answers, as a share.",
    )
    refused: Share | None = Field(
        default=0.02,
        description="Requests that the engine refuses (4xx), or whose answer a filter stops: how"
        " many more of all requests, as a share.",
    )
    ttft: Ratio | None = Field(
        default=0.15,
        description="Time to the first token: by how much longer, as a ratio. 0.15: 15 %.",
    )
    itl: Ratio | None = Field(
        default=0.15,
        description="Time for each further token: by how much longer, as a ratio.",
    )
    length: Ratio | None = Field(
        default=0.5,
        description="Tokens of an answer: by how much longer or shorter, as a ratio. 0.5: 1.5 times"
        " as long, or as short.",
    )
    min_requests: int = Field(
        default=100,
        ge=20,
        le=1_000_000,
        description="How many requests of the new version each step compares at least.",
    )
    clients_min: int = Field(
        default=2,
        ge=1,
        le=2,
        description="How many clients must see that it is worse, or no worse. 1: one is enough;"
        " needed if all requests come from one client, which then decides alone.",
    )


class CanarySettings(Section):
    """A new version that gets more and more of a route's requests (docs/canary.md)."""

    pool: Name = Field(description="Pool that serves the new version.")
    model: Word | None = Field(
        default=None,
        description="Name of the model that its backends are asked for. null: as asked.",
    )
    steps: Steps = Field(
        default=(1.0, 5.0, 25.0, 50.0, 100.0),
        description="Percent of the requests that it gets, one step after the other. Each is more"
        " than the one before; the last is 100.",
    )
    every_s: DurationS = Field(
        default=300.0,
        description="How long each step takes at least. It takes longer where too few requests come"
        " to tell that the new version is no worse.",
    )
    judge: JudgeSettings = Field(
        default=JudgeSettings(), description="What is compared, and how much worse is too much."
    )

    @model_validator(mode="after")
    def _compares_something(self) -> Self:
        judge = self.judge
        compared = (judge.errors, judge.hung, judge.broken, judge.empty, judge.refused)
        times = (judge.ttft, judge.itl, judge.length)
        if not [each for each in (*compared, *times) if each is not None]:
            raise ValueError("judge compares nothing: leave one or more of its keys")
        return self
