"""The settings of a route's conditions: which requests it is for."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core import core_schema

from penstock.conf.kinds import (
    ClockTime,
    Header,
    HeaderPattern,
    Name,
    PathPattern,
    Pattern,
    Section,
)
from penstock.conf.zones import DAY_MINUTES, WEEK_MINUTES, zone_named

PATTERNS_MAX: Final = 256
HEADERS_MAX: Final = 16
TOKENS_MAX: Final = 2**31

Need = Literal["images", "audio", "video", "tools", "structured_output", "logprobs", "reasoning"]
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: Final[tuple[Day, ...]] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
# They hold keys: tenants are told by those, and a configuration holds none in plain text.
_OF_KEYS: Final = frozenset(
    {"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"}
)

T = TypeVar("T")


class _Listed:
    """Lets one entry stand for a list of one."""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda value: (value,) if isinstance(value, str) else value, handler(source)
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        several = handler(schema)
        return {"anyOf": [several["items"], several]}


OneOrMany = Annotated[
    tuple[T, ...],
    Field(strict=False, min_length=1, max_length=PATTERNS_MAX),
    _Listed(),
]


def _zone(name: str) -> str:
    if zone_named(name) is None:
        raise ValueError("must be a time zone such as Europe/Berlin or UTC")
    return name


def told_once(headers: object) -> object:
    """Refuse two spellings of one header: only one of them would count."""
    if isinstance(headers, dict):
        names = [str(name).lower() for name in headers]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name} is given twice")
    return headers


def _no_keys(headers: Mapping[str, str]) -> Mapping[str, str]:
    for name in headers:
        if name in _OF_KEYS:
            raise ValueError(f"{name} holds keys: ask for a `tenant` instead")
    return headers


RequestHeaders = Annotated[
    dict[Header, HeaderPattern], BeforeValidator(told_once), AfterValidator(_no_keys)
]


class PromptTokensSettings(Section):
    """How long prompts are. Give `min`, `max` or both."""

    min: int | None = Field(
        default=None, ge=0, le=TOKENS_MAX, description="The fewest tokens. null: any number."
    )
    max: int | None = Field(
        default=None, ge=1, le=TOKENS_MAX, description="Fewer tokens than this. null: any number."
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("give min, max or both")
        if self.min is not None and self.max is not None and self.min >= self.max:
            raise ValueError(f"max must be above min, which is {self.min}: nothing is in between")
        return self


class HoursSettings(Section):
    """A window of time, by a clock on the wall."""

    days: OneOrMany[Day] | None = Field(
        default=None, description="Days on which the window begins. null: every day."
    )
    begin: ClockTime = Field(
        default="00:00", alias="from", description="When it begins, as '09:00'."
    )
    end: ClockTime = Field(
        default="24:00",
        alias="to",
        description="When it is over, as '17:00'. Before `from`: on the next day.",
    )
    zone: Annotated[str, AfterValidator(_zone)] = Field(
        default="UTC",
        max_length=64,
        description="Time zone of the clock, such as Europe/Berlin.",
    )

    @model_validator(mode="after")
    def _is_a_window(self) -> Self:
        if self.begin == self.end or self.begin == "24:00":
            raise ValueError(
                "from and to must differ, and from must be before 24:00; leave both out for whole"
                " days"
            )
        return self

    @property
    def minutes(self) -> int:
        """The minutes of a week in the window, as bits. Bit 0 is Monday 00:00."""
        begin, end = _minute(self.begin), _minute(self.end)
        length = end - begin if end > begin else end - begin + DAY_MINUTES
        found = 0
        for day in self.days or DAYS:
            found |= ((1 << length) - 1) << (DAYS.index(day) * DAY_MINUTES + begin)
        week = (1 << WEEK_MINUTES) - 1
        return (found & week) | (found >> WEEK_MINUTES)  # Sunday's night goes on on Monday


def _minute(clock: str) -> int:
    return int(clock[:2]) * 60 + int(clock[3:])


class MatchSettings(Section):
    """Which requests a route is for. All conditions must hold. A request without the value never
    matches a condition about it.
    """

    model: OneOrMany[Pattern] | None = Field(
        default=None,
        description="Model that is asked for: a name, or a prefix that ends in `*`. A `*` alone:"
        " any model that is named.",
    )
    path: OneOrMany[PathPattern] | None = Field(
        default=None, description="Path of the request: exact, or a prefix that ends in `*`."
    )
    headers: RequestHeaders | None = Field(
        default=None,
        min_length=1,
        max_length=HEADERS_MAX,
        description="Headers, each with its value: exact, a prefix that ends in `*`, or `*` alone"
        " if it must only be there. All must match. A client may send what it likes.",
    )
    tenant: OneOrMany[Name] | None = Field(
        default=None, description="Tenant of the key or certificate."
    )
    service_class: OneOrMany[Name] | None = Field(
        default=None, alias="class", description="Class that the request has."
    )
    stream: bool | None = Field(
        default=None, description="Whether the answer is streamed. null: either."
    )
    prompt_tokens: PromptTokensSettings | None = Field(
        default=None, description="How long all its prompts are together, as estimated. null: any."
    )
    needs: OneOrMany[Need] | None = Field(
        default=None, description="What it asks for. All that is listed, and it may be more."
    )
    lacks: OneOrMany[Need] | None = Field(
        default=None, description="What it must not ask for: nothing that is listed."
    )
    effort: OneOrMany[Name] | None = Field(
        default=None, description="Effort of reasoning that it asks for, such as `high`."
    )
    user: OneOrMany[Pattern] | None = Field(
        default=None,
        description="User in its body (`user` or `safety_identifier`): exact, or a prefix that ends"
        " in `*`.",
    )
    session: OneOrMany[Pattern] | None = Field(
        default=None,
        description="Its session key, as `affinity` says: exact, or a prefix that ends in `*`.",
    )
    hours: HoursSettings | None = Field(
        default=None, description="When requests come. null: at any time."
    )
    label: OneOrMany[Name] | None = Field(
        default=None,
        description="Label that the classifier gives it. It is asked only if all else holds, and no"
        " route before this one counts. A request without a label matches none.",
    )

    @model_validator(mode="after")
    def _can_match(self) -> Self:
        both = [each for each in self.needs or () if each in (self.lacks or ())]
        if both:
            raise ValueError(f"needs and lacks both have {both[0]}: no request matches")
        return self
