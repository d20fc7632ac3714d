"""Envoy, with one worker."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from penstock.bench.peers import venvs
from penstock.bench.peers.peer import Running, serve
from penstock.bench.processes import NotStarted, free_port

_HTTP: Final = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
_ROUTER: Final = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
_HASH: Final = [{"header": {"header_name": "x-session-id"}}]


def start(backends: Sequence[int], folder: Path, rule: str) -> Running:
    found = list((venvs.environment("Envoy") / "lib").rglob("_bin/envoy"))
    if not found:
        raise NotStarted("its package has no program for this machine")
    port, admin_port = free_port(), free_port()
    (folder / "envoy.json").write_bytes(orjson.dumps(_config(port, admin_port, backends, rule)))
    command = [str(found[0]), "-c", str(folder / "envoy.json"), "--concurrency", "1"]
    command += ["--log-level", "error", "--disable-hot-restart"]
    process = serve(command, port)
    return Running(venvs.version("Envoy"), port, process.pid, process)


def _config(port: int, admin_port: int, backends: Sequence[int], rule: str) -> dict[str, Any]:
    route: dict[str, Any] = {"cluster": "all", "timeout": "0s"}
    if rule == "RING_HASH":
        route["hash_policy"] = _HASH
    manager = {
        "@type": f"{_HTTP}.HttpConnectionManager",
        "stat_prefix": "all",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": route}],
                }
            ]
        },
        "http_filters": [{"name": "router", "typed_config": {"@type": _ROUTER}}],
    }
    filters = [{"name": "http", "typed_config": manager}]
    listener = {"name": "all", "address": _address(port), "filter_chains": [{"filters": filters}]}
    endpoints = [{"endpoint": {"address": _address(at)}} for at in backends]
    limits = {"max_connections": 8_192, "max_pending_requests": 8_192, "max_requests": 8_192}
    cluster = {
        "name": "all",
        "type": "STATIC",
        "lb_policy": rule,
        "circuit_breakers": {"thresholds": [limits]},
        "load_assignment": {"cluster_name": "all", "endpoints": [{"lb_endpoints": endpoints}]},
    }
    return {
        "admin": {"address": _address(admin_port)},
        "static_resources": {"listeners": [listener], "clusters": [cluster]},
    }


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
