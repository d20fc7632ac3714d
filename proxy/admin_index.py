"""What stands at `/` of the admin port: its paths, and what each is for.

Anybody who reaches the port may read it, so it tells nothing of this proxy.
"""

from typing import Final

_PATHS: Final = (
    ("GET", "/livez", "whether the proxy runs"),
    ("GET", "/readyz", "whether it should get traffic; 503 while it starts or drains"),
    ("GET", "/metrics", "Prometheus metrics"),
    ("GET", "/api/v1/backends", "every backend: state, reason, load, speed, last probes"),
    ("GET", "/api/v1/proxy", "the proxy itself: version, state, why its last reload failed"),
    ("GET", "/api/v1/config", "the configuration in use, with the origin of each value"),
    ("POST", "/api/v1/backends/NAME/drain", "no new requests for a backend; /ready: back"),
    ("POST", "/api/v1/backends/NAME/maint", "the same, and no probes"),
    ("POST", "/api/v1/reload", "reads the configuration again"),
    ("POST", "/api/v1/explain", "where the request in the body would go"),
)

_LINES: Final = "".join(f"{method:5} {path:29} {says}\n" for method, path, says in _PATHS)
INDEX: Final = f"""The admin port of penstock.

{_LINES}
Paths below /api ask for the admin token where there is one: Authorization: Bearer TOKEN.
"""
