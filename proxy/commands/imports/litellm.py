"""`penstock import litellm`: LiteLLM's proxy configuration as one of penstock's."""

from collections.abc import Sequence
from typing import Final

from penstock.conf.keypath import KeyPath
from penstock.proxy.commands.imports.litellm_models import Lost, deployments, variable_in
from penstock.proxy.commands.imports.litellm_pools import Pool, pool_part, pools_of
from penstock.proxy.commands.imports.litellm_routes import Router, groups_of
from penstock.proxy.commands.imports.names import Names
from penstock.proxy.commands.imports.part import Part, Variable
from penstock.proxy.commands.imports.yaml_source import YamlSource

_PORT: Final = 4000
_TIME_S_MAX: Final = 86_400.0
_STRATEGIES: Final = frozenset(
    {"simple-shuffle", "least-busy", "latency-based-routing"}
    | {"usage-based-routing", "usage-based-routing-v2"}
)
_READ: Final = {
    "model_list": frozenset[str](),
    "router_settings": frozenset(
        {"routing_strategy", "timeout", "stream_timeout", "fallbacks", "default_fallbacks"}
        | {"context_window_fallbacks", "model_group_alias"}
    ),
    "litellm_settings": frozenset(
        {"request_timeout", "fallbacks", "default_fallbacks", "context_window_fallbacks"}
    ),
    "general_settings": frozenset({"master_key"}),
}
_BY_ITSELF: Final = "penstock tries again by itself, before the first token"
_WHY: Final = {
    "num_retries": _BY_ITSELF,
    "max_retries": _BY_ITSELF,
    "retry_policy": _BY_ITSELF,
    "retry_after": _BY_ITSELF,
    "allowed_fails": "`health` says when a backend is ejected",
    "cooldown_time": "`health` says when a backend returns",
    "content_policy_fallbacks": "penstock reads no answers",
    "callbacks": "/metrics of the admin port is for Prometheus, `tracing` for OpenTelemetry",
    "success_callback": "/metrics of the admin port is for Prometheus, `tracing` for OpenTelemetry",
    "failure_callback": "/metrics of the admin port is for Prometheus, `tracing` for OpenTelemetry",
    "drop_params": "Requests pass as they are",
    "modify_params": "Requests pass as they are",
    "cache": "penstock keeps no answers. It knows what the engines' prefix caches hold",
    "database_url": "There is no database: each virtual key becomes a key in `tenants`",
    "max_parallel_requests": "`pools[].max_requests` and `tenants[].limits.concurrent` are such"
    " limits",
    "global_max_parallel_requests": "`pools[].max_requests` is such a limit for each pool",
}


def litellm(text: str, file: str) -> Part:
    """The configuration. Raises ConfigError with all that is wrong with the file."""
    source = YamlSource(text, file)
    found, lost = deployments(source)
    pools = pools_of(found)
    if not pools:
        source.refuse(("model_list",), _nothing(lost))
    strategy = source.of_kind(("router_settings", "routing_strategy"), str)
    router = Router(source, groups_of(pools))
    routes = router.routes()
    part = Part()
    part.remark("4000 is LiteLLM's own port: its --port is in no file.")
    part.put("listen", {"port": _PORT})
    _remark_other_sections(part, source)
    part.put("pools", _pools(source, pools, strategy, lost))
    part.put("routes", [_remarks(source, "router_settings"), *routes])
    timeouts = _timeouts(source)
    part.put("timeouts", timeouts)
    part.put("tenants", [_remarks(source, "general_settings"), *_tenants(source)])
    for remark in _remarks(source, "litellm_settings"):
        part.remark(str(remark[1]))
    source.raise_issues()
    return part


def _nothing(lost: Sequence[Lost]) -> str:
    if not lost:
        return "has no model that penstock could serve: there must be one with an api_base"
    line, what, why = lost[0]
    return f"has no model that penstock could serve. Line {line}, {what}: {why}"


def _pools(
    source: YamlSource, pools: Sequence[Pool], strategy: str | None, lost: Sequence[Lost]
) -> list[Part]:
    remarks, names = Part(), Names()
    at: KeyPath = ("router_settings", "routing_strategy")
    if strategy is not None and strategy not in _STRATEGIES:
        remarks.lost(source.line(at), "routing_strategy", "The policy is penstock's own")
    for each in lost:
        remarks.lost(*each)
    return [remarks, *[pool_part(pool, strategy, names) for pool in pools]]


def _timeouts(source: YamlSource) -> Part:
    part = Part()
    total_s = _seconds(source, ("router_settings", "timeout"))
    if total_s is None:
        total_s = _seconds(source, ("litellm_settings", "request_timeout"))
    stream_s = _seconds(source, ("router_settings", "stream_timeout"))
    part.put_given(total_s=total_s, first_byte_s=stream_s, idle_s=stream_s)
    return part


def _seconds(source: YamlSource, path: KeyPath) -> float | None:
    seconds = source.number(path)
    return None if seconds is None else min(max(seconds, 0.001), _TIME_S_MAX)


def _tenants(source: YamlSource) -> list[Part]:
    """Who may ask: whoever has the master key."""
    path: KeyPath = ("general_settings", "master_key")
    key = source.of_kind(path, str)
    if key is None:
        return []
    part, held = Part(), variable_in(key)
    if held is None:
        held = Variable("LITELLM_MASTER_KEY")
        line = source.line(path)
        part.remark(f"The key stands in the file of LiteLLM (line {line}): give it as {held}.")
    part.put("name", "master")
    entry = Part()
    entry.put("key", held)
    part.put("keys", [entry])
    return [part]


def _remarks(source: YamlSource, section: str) -> Part:
    """What a section says that has no equal. Values are told if they are numbers only."""
    part = Part()
    for name in source.keys((section,)):
        path: KeyPath = (section, name)
        value = source.get(path)
        if name not in _READ[section] and value is not None:
            told = f": {str(value).lower()}" if isinstance(value, bool | int | float) else ""
            part.lost(source.line(path), f"{section}.{name}{told}", _WHY.get(name, ""))
    return part


def _remark_other_sections(part: Part, source: YamlSource) -> None:
    for name in source.keys(()):
        if name == "environment_variables":
            names = ", ".join(source.keys((name,)))
            part.lost(source.line((name,)), name, f"Give penstock in its environment: {names}")
        elif name == "include":
            part.lost(source.line((name,)), name, "Import the other files too, each by itself")
        elif name not in _READ:
            part.lost(source.line((name,)), name)
