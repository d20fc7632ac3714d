"""The settings of admission: classes of requests, and how long each may wait."""

from typing import Annotated, Final

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from penstock.conf.kinds import DurationS, Name, OptionalWaitS
from penstock.conf.section import Section

CLASSES_MAX: Final = 16


class ClassSettings(Section):
    """One class of requests."""

    name: Name = Field(description="Name in headers, metrics and tenants. No two share one.")
    max_wait_s: DurationS = Field(
        description="Time to the first token that is still of use. A request that is predicted to"
        " wait longer than 60 % of it is refused at once with 429; than 20 % of it, once requests"
        " have waited for 20 s (docs/admission.md)."
    )
    share_min: float = Field(
        default=0.0,
        ge=0.0,
        le=0.5,
        allow_inf_nan=False,
        description="Share of the tokens that the class gets while higher ones wait, too.",
    )


def _names_are_unique(classes: tuple[ClassSettings, ...]) -> tuple[ClassSettings, ...]:
    names = [each.name for each in classes]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the class {name} is given twice")
    if sum([each.share_min for each in classes]) > 0.5:
        raise ValueError("all share_min together must be at most 0.5")
    return classes


Classes = Annotated[
    tuple[ClassSettings, ...],
    Field(strict=False, min_length=1, max_length=CLASSES_MAX),
    AfterValidator(_names_are_unique),
]
USUAL: Final = (
    ClassSettings(name="interactive", max_wait_s=10.0),
    ClassSettings(name="standard", max_wait_s=30.0),
    ClassSettings(name="batch", max_wait_s=600.0, share_min=0.1),
)


class AdmissionSettings(Section):
    """Who is sent now, who waits in the proxy and who is refused."""

    enabled: bool = Field(
        default=True,
        description="Whether requests wait in the proxy while their backend has enough to do."
        " false: each request is sent at once, and waits in the engine.",
    )
    classes: Classes = Field(
        default=USUAL, description="The classes of requests, the highest first."
    )
    default_class: Name = Field(
        default="standard",
        validate_default=True,
        description="Class of requests whose tenant has none.",
    )
    reserve: float = Field(
        default=0.1,
        ge=0.0,
        le=0.5,
        allow_inf_nan=False,
        description="Share of each KV cache that classes below `default_class` leave free.",
    )
    window_s: DurationS | None = Field(
        default=None,
        description="How much prefill a backend gets beforehand, at its measured speed. null:"
        " 0.1 s.",
    )
    hold_for_backend_s: OptionalWaitS = Field(
        default=0.0,
        validate_default=True,
        description="How long a request waits while no backend of its pool can serve: all are"
        " starting, say. 0: it is refused at once with 503.",
    )
    trust_clients: bool = Field(
        default=False,
        description="Whether clients without a tenant may ask for any class, with the header"
        " `x-penstock-priority`. A lower class than their own may be asked for by all.",
    )

    @field_validator("hold_for_backend_s")
    @classmethod
    def _requests_may_wait(cls, hold_s: float, info: ValidationInfo) -> float:
        if hold_s and not info.data.get("enabled", True):
            raise ValueError("needs admission.enabled: true, or no request may wait")
        return hold_s

    @field_validator("default_class")
    @classmethod
    def _is_a_class(cls, name: str, info: ValidationInfo) -> str:
        classes = info.data.get("classes", ())
        if classes and name not in [each.name for each in classes]:
            known = ", ".join([each.name for each in classes])
            raise ValueError(f"there is no class {name}: there are {known}")
        return name
