"""The settings of routes: which pool and model answer which requests."""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import InitErrorDetails

from penstock.conf.canary import CanarySettings
from penstock.conf.kinds import (
    FRAMING,
    Amount,
    Header,
    HeaderValue,
    Name,
    Section,
    Sentence,
    Word,
    fault,
    refuse,
)
from penstock.conf.route_match import HEADERS_MAX, MatchSettings, OneOrMany, told_once

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


_NAMES_TOLD: Final = 20
_GIVEN: Final = object()  # a section that is wrong itself is told of there
At = tuple[str | int, ...]
# A place in one route, what was given there, and what is wrong.
_Fault = tuple[At, str | None, str]


def check_routes(routes: Sequence[RouteSettings], settings: Mapping[str, Any]) -> None:
    """Raises ValidationError with all that is wrong.

    `settings`: the sections that are right themselves.
    """
    errors: list[InitErrorDetails] = []
    known: dict[str, list[str] | None] = {
        kind: [each.name for each in settings[section]] if section in settings else None
        for kind, section in (("pool", "pools"), ("tenant", "tenants"))
    }
    known["class"] = None
    if "admission" in settings:
        known["class"] = [each.name for each in settings["admission"].classes]
    first: dict[str, int] = {}
    adapters: dict[tuple[str, str | None], str] = {}
    for number, route in enumerate(routes):
        faults = [*_unknown(route, known), *_repeated(route), *_two_paths(route, adapters)]
        if route.match.label and settings.get("classifier", _GIVEN) is None:
            problem = "nobody gives labels: there is no `classifier`"
            faults.append((("match", "label"), None, problem))
        if first.setdefault(route.name, number) != number:
            there = f"routes[{first[route.name]}]"
            problem = f"route name {route.name!r} is taken by {there}; names must be unique"
            faults.append((("name",), None, problem))
        errors += [fault((number, *at), given, problem) for at, given, problem in faults]
    refuse("routes", errors)


def _unknown(route: RouteSettings, known: Mapping[str, list[str] | None]) -> Iterator[_Fault]:
    """Pools, tenants and classes that do not exist."""
    named: list[tuple[At, str, str]] = [
        (("to", index, "pool"), "pool", each.pool) for index, each in enumerate(route.to)
    ]
    for index, fallback in enumerate(route.fallbacks):
        named.append((("fallbacks", index, "pool"), "pool", fallback.pool))
    if route.mirror is not None:
        named.append((("mirror", "pool"), "pool", route.mirror.pool))
    if route.canary is not None:
        named.append((("canary", "pool"), "pool", route.canary.pool))
    for kind, names in (("tenant", route.match.tenant), ("class", route.match.service_class)):
        named += [(("match", kind, index), kind, name) for index, name in enumerate(names or ())]
    for at, kind, name in named:
        there = known[kind]
        if there is not None and name not in there:
            there_are = ", ".join(there[:_NAMES_TOLD]) or "none"
            yield at, name, f"there is no {kind} {name}: there are {there_are}"


def _repeated(route: RouteSettings) -> Iterator[_Fault]:
    """A pool and model that a request would be sent to a second time."""
    targets: set[tuple[str, str | None]] = set()
    for index, target in enumerate(route.to):
        if _place(target) in targets:
            yield ("to", index), None, "is in this list twice: put both in one, with one weight"
        targets.add(_place(target))
    used = {_place(each) for each in route.to if each.weight}
    seen: set[tuple[str, str | None]] = set()
    for index, fallback in enumerate(route.fallbacks):
        at = ("fallbacks", index)
        if used == {_place(fallback)}:
            yield at, None, "is the target itself, which has been tried when it would be its turn"
        if _place(fallback) in seen:
            yield at, None, "is in this list twice: put both in one, with one `on`"
        seen.add(_place(fallback))
    if route.canary is not None and _place(route.canary) in targets:
        yield ("canary",), None, "is a target of this route: there is nothing to compare"
    if route.mirror is not None and _place(route.mirror) in used:
        yield ("mirror",), None, "is a target of this route: it would get its own requests again"


def _two_paths(
    route: RouteSettings, adapters: dict[tuple[str, str | None], str]
) -> Iterator[_Fault]:
    """Adapters of one name and two paths. `adapters`: those of earlier routes, and now its own."""
    for index, target in enumerate(route.to):
        path = target.lora_path
        if path is not None and adapters.setdefault(_place(target), path) != path:
            other = adapters[_place(target)]
            problem = f"the pool {target.pool} has another path for {target.model}: {other}"
            yield ("to", index, "lora_path"), path, problem


def _place(
    each: TargetSettings | FallbackSettings | MirrorSettings | CanarySettings,
) -> tuple[str, str | None]:
    return each.pool, each.model
