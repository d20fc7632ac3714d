"""The settings of admission: classes of requests, and how long each may wait."""

from typing import Annotated, Final, Self

from pydantic import (
    AfterValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from penstock.conf.kinds import Amount, DurationS, Name, OptionalWaitS, Section, fault, refuse

CLASSES_MAX: Final = 16
STEPS_MAX: Final = 64
# The highest class has the rest.
SHARES_MAX: Final = 0.5
# Of the default class. Otherwise a higher class could keep everybody else waiting.
DEFAULT_SHARE: Final = 0.2


class ClassSettings(Section):
    """One class of requests."""

    name: Name = Field(description="Name in headers, metrics and tenants. No two share one.")
    max_wait_s: DurationS = Field(
        description="Time to the first token that is still of use. A request whose first token is"
        " predicted to come after 60 % of it is refused at once with 429 (docs/admission.md)."
    )
    share_min: float | None = Field(
        default=None,
        ge=0.0,
        le=SHARES_MAX,
        allow_inf_nan=False,
        description="Share of its pool's tokens that the class gets at least while higher ones"
        " wait, too. null: 0.2 for `default_class` (less if all would come to more than 0.5),"
        " and 0 for other classes and for the highest.",
    )


class StepSettings(Section):
    """One step of degradation. Give `max_tokens`, `prompt_tokens` or `fall_back`."""

    service_class: Name = Field(alias="class", description="Class whose requests it is for.")
    pressure: float = Field(
        gt=0.0,
        le=1.0,
        allow_inf_nan=False,
        description="Pressure at which it begins: the predicted wait of the class, over the wait at"
        " which its requests are refused. 1: when they begin to be refused.",
    )
    max_tokens: Amount | None = Field(
        default=None, description="The most tokens of an answer. Longer ones are cut there."
    )
    prompt_tokens: Amount | None = Field(
        default=None,
        description="The longest prompt. Requests with a longer one are refused with 413.",
    )
    fall_back: bool = Field(
        default=False,
        description="Whether requests go to the fall-back that their route has for `overload`, if"
        " they cost less there.",
    )

    @model_validator(mode="after")
    def _does_one_thing(self) -> Self:
        if (self.max_tokens is not None) + (self.prompt_tokens is not None) + self.fall_back != 1:
            raise ValueError("give one of max_tokens, prompt_tokens and fall_back: true")
        return self


def _names_are_unique(classes: tuple[ClassSettings, ...]) -> tuple[ClassSettings, ...]:
    names = [each.name for each in classes]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the class {name} is given twice")
    if sum([each.share_min or 0.0 for each in classes]) > SHARES_MAX:
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
        description="Whether requests wait in the proxy while their backend has no room."
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

    @property
    def shares(self) -> tuple[float, ...]:
        """The least share of each class, the highest first."""
        return tuple([each.share_min or 0.0 for each in self.classes])

    @field_validator("hold_for_backend_s")
    @classmethod
    def _requests_may_wait(cls, hold_s: float, info: ValidationInfo) -> float:
        if hold_s and not info.data.get("enabled", True):
            raise ValueError("needs admission.enabled: true, or no request may wait")
        return hold_s

    degrade: Annotated[tuple[StepSettings, ...], Field(strict=False, max_length=STEPS_MAX)] = Field(
        default=(),
        description="What is cut from requests before any is refused (docs/admission.md). If there"
        " are tenants, only for those with `degrade: true`. An empty list: nothing.",
    )

    @field_validator("degrade")
    @classmethod
    def _steps_have_classes(
        cls, steps: tuple[StepSettings, ...], info: ValidationInfo
    ) -> tuple[StepSettings, ...]:
        known = [each.name for each in info.data.get("classes", ())]
        errors = []
        for number, step in enumerate(steps):
            name = step.service_class
            if known and name not in known:
                problem = f"there is no class {name}: there are {', '.join(known)}"
                errors.append(fault((number, "class"), name, problem))
        refuse("degrade", errors)
        return steps

    @field_validator("default_class")
    @classmethod
    def _is_a_class(cls, name: str, info: ValidationInfo) -> str:
        known = [each.name for each in info.data.get("classes", ())]
        if known and name not in known:
            raise ValueError(f"there is no class {name}: there are {', '.join(known)}")
        return name

    @model_validator(mode="after")
    def _each_class_has_a_share(self) -> Self:
        """Fill in the shares that are not given, so that whoever looks at settings sees them."""
        left = SHARES_MAX - sum([each.share_min or 0.0 for each in self.classes])
        highest = self.classes[0].name
        classes = []
        for each in self.classes:
            if each.share_min is None:
                is_default = each.name == self.default_class != highest
                share = min(DEFAULT_SHARE, left) if is_default else 0.0
                each = each.model_copy(update={"share_min": share})
            classes.append(each)
        self.__dict__["classes"] = tuple(classes)  # it is frozen once it is made
        return self
