"""What nginx's configuration says that is in no key of penstock's: told, or needless here."""

from typing import Final

from penstock.proxy.commands.imports.nginx_syntax import Directive
from penstock.proxy.commands.imports.yaml_text import LOST, Part, reasons

# Headers that penstock writes for its backends itself.
WRITTEN_HEADERS: Final = frozenset(
    {"host", "connection", "upgrade", "x-real-ip", "x-request-id", "te", "accept-encoding"}
    | {"x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "forwarded"}
)
_NEEDLESS: Final = "needless"
# What there is instead. Needless is what is read, what penstock always does, and what it has
# nothing for.
_WHY: Final = reasons("""
upstream server location listen proxy_pass proxy_set_header client_max_body_size least_conn \
least_time ip_hash hash random ssl ssl_certificate ssl_certificate_key ssl_client_certificate \
ssl_verify_client proxy_ssl_trusted_certificate proxy_ssl_certificate proxy_ssl_certificate_key \
proxy_ssl_verify proxy_http_version proxy_buffering proxy_request_buffering proxy_buffers \
proxy_buffer_size proxy_busy_buffers_size proxy_redirect proxy_ssl_server_name \
proxy_ssl_session_reuse proxy_socket_keepalive chunked_transfer_encoding keepalive \
keepalive_requests zone sendfile tcp_nopush tcp_nodelay server_tokens types types_hash_max_size \
default_type user pid worker_processes worker_rlimit_nofile events http gzip \
reset_timedout_connection server_name ssl_session_cache ssl_session_timeout proxy_cache_bypass \
proxy_no_cache proxy_connect_timeout proxy_read_timeout client_header_timeout client_body_timeout \
keepalive_timeout send_timeout: needless
limit_req limit_req_zone: `tenants[].limits` has requests and tokens a minute for each client
limit_conn: `tenants[].limits.concurrent` is such a limit for each client
proxy_next_upstream proxy_next_upstream_tries proxy_next_upstream_timeout: penstock tries another \
backend by itself, before the first token
auth_basic auth_request auth_jwt: `tenants` says which keys clients may have
if: Conditions stand in `match` of a route. If it compared keys, list them in `tenants`
split_clients: `to` of a route takes weights
mirror: `mirror` of a route takes the name of a pool
map: A route matches models, headers and paths
rewrite: Paths pass as they are
add_header: penstock adds no headers to answers; `listen.cors_origins` is for browsers
health_check: `health` says when a backend is ejected: probes and failures count
sticky: `affinity` says what tells a session, `policy: session` keeps it at its backend
proxy_cache: penstock keeps no answers
stream: penstock speaks HTTP only
include: Import that file, too, or put it in place of this line
access_log: `log` is for lines of requests
error_log: `log.level` says what else is logged
""")


def tell_leftovers(part: Part, block: Directive) -> None:
    """Tell what a block says besides the directives that are read.

    Words are shown for limits only: others may hold keys.
    """
    others: dict[str, int] = {}
    for each in block.block:
        why = _WHY.get(each.name)
        if why is None:
            others.setdefault(each.name, each.line)
        elif why != _NEEDLESS and each.words[-1:] != ("mime.types",):
            part.lose(each.line, each.title if each.name.startswith("limit_") else each.name, why)
    if others:
        told = ", ".join([f"{name} (line {line})" for name, line in others.items()])
        part.remark(f"{LOST}: {told}.")
