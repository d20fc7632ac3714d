"""The page at `/` of the admin port: its paths and their purposes.

Everybody who reaches the port may read it, so it tells nothing about this proxy.
"""

from typing import Final

_PATHS: Final = (
    ("GET", "/livez", "whether the proxy runs"),
    (
        "GET",
        "/readyz",
        "whether it should get traffic; 503 while it starts, drains or lacks memory",
    ),
    ("GET", "/metrics", "Prometheus metrics"),
    ("GET", "/ui", "the page: all this live, for people"),
    ("GET", "/ui/session", "what this browser may do"),
    ("POST", "/ui/session", "begins a session of the page, with a token"),
    ("DELETE", "/ui/session", "ends it"),
    ("GET", "/api/v1/events", "what the page shows, once a second (server-sent events)"),
    ("GET", "/api/v1/backends", "every backend: state, reason, load, speed, last probes"),
    ("GET", "/api/v1/proxy", "the proxy itself: version, state, its last reload, what it refuses"),
    ("GET", "/api/v1/history", "the last 24 hours of the charts, and the verdicts that are over"),
    ("GET", "/api/v1/verdict", "what makes each pool slow now, and what to do about it"),
    ("GET", "/api/v1/queue", "what waits for a backend: by class, and what is next"),
    ("GET", "/api/v1/requests", "recent requests, and where their time went"),
    ("GET", "/api/v1/requests/ID", "those with this id"),
    ("GET", "/api/v1/tenants", "what each tenant has used, and what is left of its budgets"),
    ("GET", "/api/v1/slo", "how far each service level is kept, and what is left of its budget"),
    ("GET", "/api/v1/canaries", "where each canary stands, why, and what has happened"),
    ("POST", "/api/v1/canaries/NAME/promote", "gives a route's canary all requests"),
    ("POST", "/api/v1/canaries/NAME/abort", "takes all requests from it"),
    ("POST", "/api/v1/canaries/NAME/restart", "lets it begin at its first step"),
    ("GET", "/api/v1/config", "the configuration in use, with the origin of each value"),
    ("POST", "/api/v1/backends/NAME/drain", "no new requests for a backend; /ready undoes it"),
    ("POST", "/api/v1/backends/NAME/maint", "no new requests and no probes for a backend"),
    ("POST", "/api/v1/reload", "reads the configuration again"),
    ("POST", "/api/v1/restart", "has the next process take over, if there is a supervisor"),
    ("POST", "/api/v1/explain", "where the request in the body would go"),
)

_LINES: Final = "".join(f"{method:6} {path:31} {says}\n" for method, path, says in _PATHS)
INDEX: Final = f"""The admin port of penstock.

{_LINES}
Paths below /api need the admin token, if one is configured: Authorization: Bearer TOKEN.
"""
