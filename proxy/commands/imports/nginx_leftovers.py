"""What nginx's configuration says that is in no key of penstock's: told, or needless here."""

from collections.abc import Collection
from typing import Final

from penstock.proxy.commands.imports.nginx_syntax import Directive
from penstock.proxy.commands.imports.part import LOST, Part

_BUDGETS: Final = "`tenants[].limits` has requests and tokens a minute for each client"
_AGAIN: Final = "penstock tries another backend by itself, before the first token"
_KEYS: Final = "`tenants` says which keys clients may have"
_HEALTH: Final = "`health` says when a backend is ejected: probes and failures count"
# Directives whose words hold no secret and help to find what to write instead.
_SHOWN: Final = frozenset({"limit_req", "limit_req_zone", "limit_conn", "limit_conn_zone"})
_WHY: Final = {
    "limit_req": _BUDGETS,
    "limit_req_zone": _BUDGETS,
    "limit_conn": "`tenants[].limits.concurrent` is such a limit for each client",
    "proxy_next_upstream": _AGAIN,
    "proxy_next_upstream_tries": _AGAIN,
    "proxy_next_upstream_timeout": _AGAIN,
    "auth_basic": _KEYS,
    "auth_request": _KEYS,
    "auth_jwt": _KEYS,
    "if": "Conditions stand in `match` of a route. If it compared keys, list them in `tenants`",
    "split_clients": "`to` of a route takes weights",
    "mirror": "`mirror` of a route takes the name of a pool",
    "map": "A route matches models, headers and paths",
    "rewrite": "Paths pass as they are",
    "add_header": "penstock adds no headers to answers; `listen.cors_origins` is for browsers",
    "health_check": _HEALTH,
    "sticky": "`affinity` says what tells a session, `policy: session` keeps it at its backend",
    "proxy_cache": "penstock keeps no answers",
    "stream": "penstock speaks HTTP only",
    "include": "Import that file, too, or put it in place of this line",
    "access_log": "`log` is for lines of requests",
    "error_log": "`log.level` says what else is logged",
}
# penstock always does so, or has nothing that it could be for.
_NEEDLESS: Final = frozenset(
    {"proxy_http_version", "proxy_buffering", "proxy_request_buffering", "proxy_buffers"}
    | {"proxy_buffer_size", "proxy_busy_buffers_size", "proxy_redirect", "proxy_ssl_server_name"}
    | {"proxy_ssl_session_reuse", "proxy_socket_keepalive", "chunked_transfer_encoding"}
    | {"keepalive", "keepalive_requests", "zone", "sendfile", "tcp_nopush", "tcp_nodelay"}
    | {"server_tokens", "types", "types_hash_max_size", "default_type", "user", "pid"}
    | {
        "worker_processes",
        "worker_rlimit_nofile",
        "events",
        "http",
        "gzip",
        "reset_timedout_connection",
    }
    | {
        "server_name",
        "ssl_session_cache",
        "ssl_session_timeout",
        "proxy_cache_bypass",
        "proxy_no_cache",
    }
)
# Headers that penstock writes for its backends itself.
WRITTEN_HEADERS: Final = frozenset(
    {"host", "connection", "upgrade", "x-real-ip", "x-request-id", "te", "accept-encoding"}
    | {"x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "forwarded"}
)


def tell_leftovers(part: Part, block: Directive, read: Collection[str]) -> None:
    """Tell what a block says besides the directives that are read.

    Words are shown for few: they may hold keys.
    """
    others: dict[str, int] = {}
    for each in block.block or ():
        if each.name in read or each.name in _NEEDLESS or each.words[-1:] == ("mime.types",):
            continue
        if each.name in _WHY:
            words = " ".join((each.name, *each.words)) if each.name in _SHOWN else each.name
            part.lost(each.line, words, _WHY[each.name])
        else:
            others.setdefault(each.name, each.line)
    if others:
        told = ", ".join([f"{name} (line {line})" for name, line in others.items()])
        part.remark(f"{LOST}: {told}.")
