"""What LiteLLM's `model_list` says: which server answers for which name, and how."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from penstock.conf.keypath import KeyPath
from penstock.conf.kinds import AMOUNT_MAX, PATTERN, WORD, BackendUrl
from penstock.conf.routes import READ_MEMBERS
from penstock.proxy.commands.imports.part import Variable
from penstock.proxy.commands.imports.yaml_source import YamlSource

FROM_ENVIRONMENT: Final = "os.environ/"
# Providers whose servers speak OpenAI's API themselves, so that nothing is to be translated.
_SPOKEN: Final = frozenset(
    {"hosted_vllm", "vllm", "openai", "text-completion-openai", "openai_like", "custom_openai"}
    | {"lm_studio", "llamafile"}
)
# What people write where LiteLLM asks for a key and the server does not.
_NO_KEYS: Final = frozenset({"", "none", "empty", "dummy", "fake", "fake-key", "not-needed", "na"})
_DEFAULTS: Final = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"}
    | {"repetition_penalty", "seed", "reasoning_effort"}
)
_READ: Final = frozenset(
    {"model", "api_base", "base_url", "api_key", "weight", "max_parallel_requests"}
    | {"custom_llm_provider"}
)
_WHY: Final = {
    "rpm": "A backend has no such limit here: `tenants[].limits.requests_per_minute` is for each"
    " client",
    "tpm": "A backend has no such limit here: `tenants[].limits.tokens_per_minute` is for each"
    " client",
    "timeout": "`timeouts` count for all pools",
    "stream_timeout": "`timeouts` count for all pools",
    "order": "`fallbacks` of a route are tried in their order",
    "max_retries": "penstock tries again by itself, before the first token",
    "input_cost_per_token": "`pools[].cost_per_hour` tells what a backend costs",
    "output_cost_per_token": "`pools[].cost_per_hour` tells what a backend costs",
}
_URL: Final[TypeAdapter[str]] = TypeAdapter(BackendUrl)
Lost = tuple[int, str, str]


@dataclass(frozen=True)
class Deployment:
    """One server that answers for a name."""

    group: str
    """The name that clients ask for."""
    model: str
    """The name that its server gets."""
    url: str
    key: str | None
    """The environment variable with its key, or the key itself: it is never written."""
    line: int
    name: str | None = None
    weight: float | None = None
    max_requests: int | None = None
    defaults: tuple[tuple[str, Any], ...] = ()
    lost: tuple[Lost, ...] = field(default=(), compare=False)


def is_model(name: str) -> bool:
    """Whether a route can match requests for a model of exactly this name."""
    return bool(re.fullmatch(PATTERN, name)) and not name.endswith("*")


def variable_in(value: object) -> Variable | None:
    """The environment variable that `os.environ/NAME` names."""
    if not isinstance(value, str) or not value.startswith(FROM_ENVIRONMENT):
        return None
    name = value.removeprefix(FROM_ENVIRONMENT)
    return Variable(name) if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else None


def deployments(source: YamlSource) -> tuple[list[Deployment], list[Lost]]:
    """All that penstock can serve, and the entries that it cannot."""
    found: list[Deployment] = []
    lost: list[Lost] = []
    for at in source.entries(("model_list",)):
        deployment = _deployment(source, at)
        if isinstance(deployment, Deployment):
            found.append(deployment)
        elif deployment is not None:
            lost.append(deployment)
    return found, lost


def _deployment(source: YamlSource, at: KeyPath) -> Deployment | Lost | None:
    params = (*at, "litellm_params")
    group = source.of_kind((*at, "model_name"), str)
    model = source.of_kind((*params, "model"), str)
    if group is None or model is None:
        for path, value in (((*at, "model_name"), group), ((*params, "model"), model)):
            if value is None and source.get(path) is None:
                source.refuse(path if source.get(at) else at, "is required")
        return None
    line = source.line((*at, "model_name"))
    what = f"the model {group}"
    provider, sent = _split(model, source.of_kind((*params, "custom_llm_provider"), str))
    if provider not in _SPOKEN:
        told = f"the provider {provider}" if provider else "a provider that is not named"
        return line, what, f"It is of {told}, and penstock translates no requests"
    url, why = _url(source, params)
    if url is None:
        return (line, what, why) if why else None
    if "*" in sent:
        return line, what, "Its server gets the name that is asked for: list each model by its name"
    if not re.fullmatch(PATTERN, group) or not re.fullmatch(WORD, sent):
        return line, what, "A name has 1 to 256 characters, no spaces, and a * at its end only"
    return _read(source, at, group, sent, url)


def _read(source: YamlSource, at: KeyPath, group: str, sent: str, url: str) -> Deployment:
    params = (*at, "litellm_params")
    key, lost = source.get((*params, "api_key")), list(_lost(source, at))
    if key is not None and str(key).lower() in _NO_KEYS:
        key = None
    weight = source.number((*params, "weight"))
    if weight is not None and not 0.001 <= weight <= 1000:
        lost.append(
            (source.line((*params, "weight")), f"weight: {weight:g}", "It is 0.001 to 1000")
        )
        weight = None
    running = source.number((*params, "max_parallel_requests"))
    name = source.get((*at, "model_info", "id"))
    return Deployment(
        group,
        sent,
        url,
        None if key is None else str(key),
        source.line((*at, "model_name")),
        name if isinstance(name, str) else None,
        weight,
        None if running is None else max(1, int(min(running, AMOUNT_MAX))),
        tuple(_defaults(source, params)),
        tuple(lost),
    )


def _split(model: str, provider: str | None) -> tuple[str, str]:
    """The provider of a model, and the name that the provider gets."""
    first, slash, rest = model.partition("/")
    if provider is not None:
        return provider, rest if first == provider else model
    return (first, rest) if slash else ("", model)


def _url(source: YamlSource, params: KeyPath) -> tuple[str | None, str]:
    """The address of the server without /v1, or None and why it cannot be used."""
    at = (*params, "api_base" if source.get((*params, "api_base")) is not None else "base_url")
    base = source.of_kind(at, str)
    if base is None:
        return None, "It has no api_base, and penstock knows no provider's address"
    if variable_in(base) is not None:
        return base, ""
    url = re.sub(r"(?<=[^/])(/v1)?/*$", "", base)
    try:
        return _URL.validate_python(url), ""
    except ValidationError as refusal:
        problem = refusal.errors()[0]["msg"].removeprefix("Value error, ")
        if not base.startswith(("http://", "https://")):
            source.refuse(at, problem)
            return None, ""
        return None, f"Its api_base {problem.partition(':')[0]}"


def _defaults(source: YamlSource, params: KeyPath) -> Iterator[tuple[str, Any]]:
    """Members that the server gets where the client gave none."""
    for name in source.keys(params):
        value = source.get((*params, name))
        if name in _DEFAULTS and isinstance(value, bool | int | float | str):
            yield name, value


def _lost(source: YamlSource, at: KeyPath) -> Iterator[Lost]:
    """What has no equal. Its value is told if it is a number: text may be a secret."""
    params = (*at, "litellm_params")
    for path in [(*params, name) for name in source.keys(params)]:
        name, value = str(path[-1]), source.get(path)
        if name in _READ or value is None:
            continue
        if name in _DEFAULTS and isinstance(value, bool | int | float | str):
            continue
        told = f"{name}: {str(value).lower()}" if isinstance(value, int | float) else name
        why = _WHY.get(name, "")
        if name in READ_MEMBERS:
            why = "penstock counts by what the client asks for, so no route gives a default for it"
        yield source.line(path), told, why
    for name in source.keys((*at, "model_info")):
        if name != "id":
            yield source.line((*at, "model_info", name)), f"model_info.{name}", ""
