"""`penstock import litellm`: LiteLLM's proxy configuration as one of penstock's."""

import re
from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter, ValidationError

from penstock.conf.kinds import AMOUNT_MAX, PATTERN, WORD, BackendUrl
from penstock.conf.routes import READ_MEMBERS
from penstock.proxy.commands.imports.litellm_routes import Server, routes_of
from penstock.proxy.commands.imports.yaml_source import Place, places_of
from penstock.proxy.commands.imports.yaml_text import Lost, Names, Part, Variable, reasons

_PORT: Final = 4000
_TIME_S_MAX: Final = 86_400.0
_POLICIES: Final = {
    "simple-shuffle": "weighted_random",
    "least-busy": "least_requests",
    "latency-based-routing": "peak_ewma",
    "usage-based-routing": "token_cost",
    "usage-based-routing-v2": "token_cost",
}
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
_FALLBACKS: Final = frozenset({"fallbacks", "default_fallbacks", "context_window_fallbacks"})
_READ: Final = {
    "model_list": frozenset[str](),
    "router_settings": _FALLBACKS
    | {"routing_strategy", "timeout", "stream_timeout", "model_group_alias"},
    "litellm_settings": _FALLBACKS | {"request_timeout"},
    "general_settings": frozenset({"master_key"}),
}
_READ_OF_MODEL: Final = frozenset(
    {"model", "api_base", "base_url", "api_key", "weight", "max_parallel_requests"}
    | {"custom_llm_provider"}
)
# What there is instead of the keys that have no equal.
_WHY: Final = reasons("""
allowed_fails: `health` says when a backend is ejected
cache: penstock keeps no answers. It knows what the engines' prefix caches hold
callbacks success_callback failure_callback: /metrics of the admin port is for Prometheus, \
`tracing` for OpenTelemetry
content_policy_fallbacks: penstock reads no answers
cooldown_time: `health` says when a backend returns
database_url: There is no database: each virtual key becomes a key in `tenants`
drop_params modify_params: Requests pass as they are
global_max_parallel_requests: `pools[].max_requests` is such a limit for each pool
include: Import the other files too, each by itself
input_cost_per_token output_cost_per_token: `pools[].cost_per_hour` tells what a backend costs
max_parallel_requests: `pools[].max_requests` and `tenants[].limits.concurrent` are such limits
num_retries max_retries retry_policy retry_after: penstock tries again by itself, before the \
first token
order: `fallbacks` of a route are tried in their order
rpm: A backend has no such limit here: `tenants[].limits.requests_per_minute` is for each client
timeout stream_timeout: `timeouts` count for all pools
tpm: A backend has no such limit here: `tenants[].limits.tokens_per_minute` is for each client
""")
_WHY_NO_DEFAULT: Final = dict.fromkeys(
    READ_MEMBERS, "penstock counts by what the client asks for, so no route gives a default for it"
)
_URL: Final[TypeAdapter[str]] = TypeAdapter(BackendUrl)


def litellm(text: str, file: str) -> Part:
    """The configuration. Raises ConfigError with all that is wrong with the file."""
    root, remarks, names = places_of(text, file), Part(), Names()
    router, keys_at = root["router_settings"], root["general_settings"]["master_key"]
    strategy = router["routing_strategy"]
    if strategy.text is not None and strategy.text not in _POLICIES:
        remarks.lose(strategy.line, "routing_strategy", "The policy is penstock's own")
    lost: list[Lost] = []
    servers = [found for each in root["model_list"].entries if (found := _server(each, lost))]
    for each in lost:
        remarks.lose(*each)
    if not servers:
        told = f". Line {lost[0][0]}, {lost[0][1]}: {lost[0][2]}" if lost else ""
        told = told or ": there must be one with an api_base"
        root["model_list"].refuse(f"has no model that penstock could serve{told}")
    pools, part = _pools(servers), Part()
    part.remark("4000 is LiteLLM's own port: its --port is in no file.")
    part.put(listen={"port": _PORT})
    variables = ", ".join([each.name for each in root["environment_variables"].members])
    why = {"environment_variables": f"Give penstock in its environment: {variables}"}
    part.lose_all(root.others(_READ, _WHY | why))
    part.put(
        pools=[remarks, *[_pool(*each, strategy.text, names) for each in pools.items()]],
        routes=[_others(router), *routes_of(root, pools)],
        timeouts=_timeouts(root),
        tenants=[_others(root["general_settings"]), *_tenants(keys_at)],
    )
    part.lines += _others(root["litellm_settings"]).lines
    root.raise_issues()
    return part


def _others(section: Place) -> Part:
    """What a section says that has no equal."""
    part = Part()
    part.lose_all(section.others(_READ[section.name], _WHY, f"{section.name}."))
    return part


def _timeouts(root: Place) -> Part:
    router = root["router_settings"]
    places = (router["timeout"], root["litellm_settings"]["request_timeout"])
    total_s, request_s, stream_s = (
        None if (found_s := each.number) is None else min(max(found_s, 0.001), _TIME_S_MAX)
        for each in (*places, router["stream_timeout"])
    )
    total_s = request_s if total_s is None else total_s
    return Part(total_s=total_s, first_byte_s=stream_s, idle_s=stream_s)


def _tenants(key: Place) -> list[Part]:
    """Who may ask: whoever has the master key."""
    if key.text is None:
        return []
    tenant, entry = Part(), Part()
    _put_key(tenant, entry, "key", key.text, "LITELLM_MASTER_KEY", key.line)
    tenant.put(name="master", keys=[entry])
    return [tenant]


def _put_key(told: Part, part: Part, name: str, key: str | None, variable: str, line: int) -> None:
    """Write a key as a variable. One that stands in the file itself is told in `told`."""
    held = _variable_in(key)
    if key is not None and held is None:
        held = Variable(variable)
        told.remark(f"The key stands in the file of LiteLLM (line {line}): give it as {held}.")
    part.put(**{name: held})


def _variable_in(value: str | None) -> Variable | None:
    """The environment variable that `os.environ/NAME` names."""
    found = re.fullmatch("os[.]environ/([A-Za-z_][A-Za-z0-9_]*)", value or "")
    return None if found is None else Variable(found[1])


def _server(entry: Place, lost: list[Lost]) -> Server | None:
    """A server. None: why penstock cannot ask it is in `lost`, or has been refused."""
    params = entry["litellm_params"]
    group, model = entry["model_name"].text, params["model"].text
    for each in (entry["model_name"], params["model"]):
        if each.value is None:
            each.refuse("is required")
    if group is None or model is None:
        return None
    provider = params["custom_llm_provider"].text
    first, slash, rest = model.partition("/")
    sent = rest if slash and provider in (None, first) else model
    provider = (first if slash else "") if provider is None else provider
    url, why = None, ""
    if provider not in _SPOKEN:
        told = f"the provider {provider}" if provider else "a provider that is not named"
        why = f"It is of {told}, and penstock translates no requests"
    else:
        url, why = _url(params)
    if url is not None and "*" in sent:
        why = "Its server gets the name that is asked for: list each model by its name"
    elif url is not None and not (re.fullmatch(PATTERN, group) and re.fullmatch(WORD, sent)):
        why = "A name has 1 to 256 characters, no spaces, and a * at its end only"
    if why:
        lost.append((entry["model_name"].line, f"the model {group}", why))
    return None if url is None or why else _read(entry, group, sent, url)


def _read(entry: Place, group: str, model: str, url: str) -> Server:
    """The server with its key, its limits and its defaults."""
    params, info = entry["litellm_params"], entry["model_info"]
    key, name, weight = params["api_key"].value, info["id"].value, params["weight"].number
    defaults = {
        each.name: each.value
        for each in params.members
        if each.name in _DEFAULTS and isinstance(each.value, bool | int | float | str)
    }
    lost = [
        *params.others(_READ_OF_MODEL | defaults.keys(), _WHY | _WHY_NO_DEFAULT),
        *info.others({"id"}, {}, "model_info."),
    ]
    if weight is not None and not 0.001 <= weight <= 1000:
        lost.append((params["weight"].line, f"weight: {weight:g}", "It is 0.001 to 1000"))
        weight = None
    running = params["max_parallel_requests"].number
    return Server(
        *(group, model, url, entry["model_name"].line),
        key=None if key is None or str(key).lower() in _NO_KEYS else str(key),
        name=name if isinstance(name, str) else None,
        weight=weight,
        max_requests=None if running is None else max(1, int(min(running, AMOUNT_MAX))),
        defaults=defaults,
        lost=lost,
    )


def _url(params: Place) -> tuple[str | None, str]:
    """The address of the server without /v1, or None and why it cannot be used."""
    place = params["base_url" if params["api_base"].value is None else "api_base"]
    base = place.text
    if base is None:
        return None, "It has no api_base, and penstock knows no provider's address"
    if _variable_in(base) is not None:
        return base, ""
    try:
        return _URL.validate_python(re.sub(r"(?<=[^/])(/v1)?/*$", "", base)), ""
    except ValidationError as refusal:
        problem = refusal.errors()[0]["msg"].removeprefix("Value error, ")
        if base.startswith(("http://", "https://")):
            return None, f"Its api_base {problem.partition(':')[0]}"
        place.refuse(problem)
        return None, ""


def _pools(servers: Sequence[Server]) -> dict[str, list[list[Server]]]:
    """By pool, its servers, each with its entries. Servers that answer for the same names by the
    same models are one pool. Each is in one only, or its load would count twice.
    """
    by_url: dict[str, list[Server]] = {}
    for each in servers:
        by_url.setdefault(each.url, []).append(each)
    names, known, pools = Names(), dict[object, str](), dict[str, list[list[Server]]]()
    for entries in by_url.values():
        answers = frozenset((each.group, each.model) for each in entries)
        if answers not in known:
            known[answers] = names.new(entries[0].group)
        pools.setdefault(known[answers], []).append(entries)
    return pools


def _pool(pool: str, servers: Sequence[list[Server]], strategy: str | None, names: Names) -> Part:
    """One pool as it is written. `names`: of backends."""
    all_entries = [each for entries in servers for each in entries]
    policy = _POLICIES.get(strategy or "")
    if strategy is None and any(each.weight is not None for each in all_entries):
        policy = "weighted_random"
    part = Part(name=pool, policy=policy, models=[*dict.fromkeys(e.model for e in all_entries)])
    shared = len({each.key for each in all_entries}) == 1
    if shared:
        _put_api_key(part, all_entries[0], pool)
    weighs = policy not in (None, "token_cost")
    backends = []
    for entries in servers:
        own = entries[0].name
        name = names.new(own) if own else names.numbered(pool)
        backends.append(_backend(name, entries, weighs=weighs, has_key=not shared))
    part.put(backends=backends)
    return part


def _put_api_key(part: Part, server: Server, name: str) -> None:
    plain = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")
    variable = f"{plain if plain[:1].isalpha() else f'POOL_{plain}'}_API_KEY"
    _put_key(part, part, "api_key", server.key, variable, server.line)


def _backend(name: str, entries: Sequence[Server], *, weighs: bool, has_key: bool) -> Part:
    """One server, with what its entries say that has no equal."""
    part, first = Part(), entries[0]
    part.lose_all(dict.fromkeys(lost for each in entries for lost in each.lost))
    variable = _variable_in(first.url)
    if variable is not None:
        part.remark(f"{variable} must hold no path: neither /v1 nor another.")
    part.put(name=name, url=variable or first.url)
    # Its weight for the first name that it answers for: two entries of one name add up.
    weight = sum([each.weight or 1.0 for each in entries if each.group == first.group])
    if weighs and weight != 1.0:
        part.put(weight=min(1000.0, weight))
    elif weight != 1.0:
        part.lose(first.line, f"weight: {weight:g}", "The policy measures how fast a backend is")
    running = [each.max_requests for each in entries if each.max_requests is not None]
    part.put(max_requests=sum(running) if running else None)
    if has_key:
        _put_api_key(part, first, name)
        if others := [each.line for each in entries if each.key != first.key]:
            part.remark(f"It has another key in line {others[0]}: one counts for all.")
    return part
