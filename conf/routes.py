"""The settings of routes: which pool and model answer which requests."""

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from penstock.conf.canary import CanarySettings
from penstock.conf.kinds import FRAMING, Amount, Header, HeaderValue, Name, Sentence, Word
from penstock.conf.route_match import HEADERS_MAX, MatchSettings, OneOrMany, told_once
from penstock.conf.section import Section

ROUTES_MAX: Final = 1_024
TARGETS_MAX: Final = 16
FALLBACKS_MAX: Final = 4
DEFAULTS_MAX: Final = 16

# What a fall-back is for.
Cause = Literal["no_backend", "overload", "context", "errors"]
CAUSES: Final[tuple[str, ...]] = get_args(Cause)
Sticky = Literal["session", "user", "tenant", "request"]

# penstock writes these itself for each backend, or clients' keys are in them.
_NOT_SET: Final = FRAMING | {
    *("keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
    *("http2-settings", "forwarded", "via", "x-real-ip", "x-request-id", "x-vllm-priority"),
    *("authorization", "x-api-key", "api-key", "cookie", "traceparent", "tracestate"),
}
_PREFIXES_NOT_SET: Final = ("x-forwarded-", "x-penstock-")
# penstock reads these in the client's body. What is added later would not be counted.
READ_MEMBERS: Final = frozenset(
    {"model", "stream", "stream_options", "previous_response_id", "request_id", "background", "n"}
    | {"max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens"}
    | {
        "truncate_prompt_tokens",
        "truncation",
        "service_tier",
        "priority",
        "cache_salt",
        "prompt_logprobs",
    }
    | {"echo", "logprobs", "top_logprobs", "prompt", "messages", "system", "tools"}
    | {"instructions", "input", "use_beam_search"}
    | {"prompt_embeds", "token_ids", "sampling_params"}
)

Model = Annotated[
    Word | None,
    Field(default=None, description="Name of the model that is sent. null: the one asked for."),
]


def _may_be_set(headers: Mapping[str, str]) -> Mapping[str, str]:
    for name in headers:
        if name in _NOT_SET or name.startswith(_PREFIXES_NOT_SET):
            raise ValueError(f"{name} cannot be set here: penstock or the client writes it")
    return headers


def _are_unread(defaults: Mapping[str, object]) -> Mapping[str, object]:
    for name, value in defaults.items():
        if name in READ_MEMBERS:
            raise ValueError(
                f"{name} cannot have a default: penstock reads it in the client's body"
            )
        if isinstance(value, str) and len(value) > 256:
            raise ValueError(f"{name} must be at most 256 characters long")
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{name} must be a finite number")
    return defaults


class TargetSettings(Section):
    """A pool that gets a share of a route's requests."""

    pool: Name = Field(description="Name of the pool.")
    weight: float = Field(
        default=1.0,
        ge=0,
        le=1_000_000,
        allow_inf_nan=False,
        description="Its share is its weight over the sum of all. 0: it gets none, and keeps its"
        " place for later (docs/routes.md).",
    )
    model: Model
    lora_path: Word | None = Field(
        default=None,
        description="Path of a LoRA adapter, as the engines read it. At the first use an engine is"
        " asked to load it as `model`. null: the engines have the model.",
    )

    @model_validator(mode="after")
    def _names_its_adapter(self) -> Self:
        if self.lora_path is not None and self.model is None:
            raise ValueError("lora_path: give `model`, too: the adapter's name")
        return self


class FallbackSettings(Section):
    """A pool that is tried when the target cannot serve."""

    pool: Name = Field(description="Name of the pool.")
    model: Model
    on: OneOrMany[Cause] | None = Field(
        default=None,
        description="When it is tried: no backend can serve, all have too much to do, the prompt is"
        " too long for the model, or errors before the first token. null: in all these cases.",
    )


class MirrorSettings(Section):
    """A pool that gets a copy of some requests. Its answers are thrown away."""

    pool: Name = Field(description="Name of the pool.")
    model: Model
    share: float = Field(
        gt=0,
        le=1,
        allow_inf_nan=False,
        description="Share of the requests that are copied. Whole sessions are, where there are.",
    )
    forward_authorization: bool = Field(
        default=False,
        description="Whether copies have their clients' keys, if the pool forwards keys at all.",
    )


class SetBodySettings(Section):
    """What is changed in the JSON that a backend gets."""

    max_tokens_at_most: Amount | None = Field(
        default=None, description="The most tokens of an answer. null: no limit."
    )
    defaults: Annotated[dict[Word, bool | int | float | str], AfterValidator(_are_unread)] = Field(
        default={},
        max_length=DEFAULTS_MAX,
        description="Members that are set where the client gave none, or null, such as"
        " `temperature: 0.2`. Numbers, text, true or false.",
    )


SetHeaders = Annotated[
    dict[Header, HeaderValue], BeforeValidator(told_once), AfterValidator(_may_be_set)
]


class SetSettings(Section):
    """What is changed in requests before a backend gets them."""

    headers: SetHeaders = Field(
        default={},
        max_length=HEADERS_MAX,
        description="Headers with their values. They replace the client's of the same name. The"
        " values are never shown.",
    )
    body: SetBodySettings = SetBodySettings()


class RouteSettings(Section):
    """Where the requests go that match. The first route that matches counts."""

    name: Name = Field(description="Name in metrics and messages. No two routes share one.")
    match: MatchSettings = Field(
        default=MatchSettings(), description="Which requests it is for. Left out: all."
    )
    to: Annotated[tuple[TargetSettings, ...], Field(strict=False)] = Field(
        default=(),
        max_length=TARGETS_MAX,
        description="Pools that share the requests. Give it, or `refuse`.",
    )
    refuse: Sentence | None = Field(
        default=None,
        description="Message of the 403 that its requests get, in place of `to`. null: they are"
        " served.",
    )
    sticky: Sticky = Field(
        default="session",
        description="What keeps its target while weights stay. `session`: the session, else the"
        " user. `user`: the user, else the session. `tenant`: the tenant, else the client's"
        " address. `request`: nothing. What has none of these is drawn by itself.",
    )
    fallbacks: Annotated[tuple[FallbackSettings, ...], Field(strict=False)] = Field(
        default=(),
        max_length=FALLBACKS_MAX,
        description="Pools that are tried in this order, before the first token only.",
    )
    changes: SetSettings = Field(
        default=SetSettings(), alias="set", description="What is changed in its requests."
    )
    canary: CanarySettings | None = Field(
        default=None,
        description="A new version that takes over from `to`, step by step, while it is no worse"
        " (docs/canary.md). null: none.",
    )
    mirror: MirrorSettings | None = Field(
        default=None, description="Where copies of its requests go. null: nowhere."
    )
    spill: bool = Field(
        default=False,
        description="Whether its requests may go to another of its targets that costs less now, and"
        " takes prompts as long.",
    )

    @model_validator(mode="after")
    def _goes_somewhere(self) -> Self:
        if bool(self.to) == (self.refuse is not None):
            raise ValueError("give one of to and refuse")
        if self.to and not sum([each.weight for each in self.to]):
            raise ValueError("to: all weights are 0, so no pool gets its requests")
        only_served = self.fallbacks or self.mirror or self.canary
        if self.refuse is not None and (only_served or self.changes != SetSettings()):
            raise ValueError(
                "refuse: its requests go nowhere, so drop fallbacks, mirror, canary and set"
            )
        if self.spill and len(self.to) < 2:
            raise ValueError("spill: there must be another pool in `to`")
        if self.spill and [each for each in self.to if each.lora_path is not None]:
            raise ValueError(
                "`spill` cannot be used with `lora_path`: the cost of a request is unknown where"
                " its adapter is not loaded"
            )
        return self


Routes = Annotated[tuple[RouteSettings, ...], Field(strict=False, max_length=ROUTES_MAX)]
