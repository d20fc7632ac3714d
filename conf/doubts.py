"""Finds values that are valid but probably a mistake. They are reported as warnings with lines.

Each finder yields key paths and problems. Secrets are measured but never shown.
"""

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from penstock.conf.keypath import KeyPath, leaves, spell
from penstock.conf.kinds import is_loopback
from penstock.conf.pools import PoolSettings
from penstock.conf.route_doubts import route_doubts
from penstock.conf.settings import Settings

Doubt = tuple[KeyPath, str]

# 96 bits in base64. Anything shorter was probably made up by a person.
KEY_CHARS_MIN: Final = 16
_PORTS: Final = {"http": 80, "https": 443}
_WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, not listened on


def doubts(settings: Settings) -> Iterator[Doubt]:
    """Yield all doubts except those about modes of files, which are checked when they are read."""
    yield from _ports(settings)
    yield from _addresses(settings)
    yield from _probes(settings)
    yield from _secrets(settings)
    yield from _readers(settings)
    yield from _certificates(settings)
    yield from _strangers(settings)
    yield from _fleet(settings)
    yield from _affinity(settings)
    yield from _forgetting(settings)
    yield from _holding(settings)
    yield from _degradation(settings)
    yield from route_doubts(settings)
    for index, pool in enumerate(settings.pools):
        yield from _of_pool(pool, ("pools", index))


def _ports(settings: Settings) -> Iterator[Doubt]:
    listen, admin = settings.listen, settings.admin
    same_host = listen.host == admin.host or not {listen.host, admin.host}.isdisjoint(_WILDCARDS)
    if listen.port == admin.port != 0 and same_host:
        yield ("admin", "port"), f"{admin.port} is also listen.port: only one of the two can listen"
    own = {port: key for port, key in ((admin.port, "admin"), (listen.port, "listen")) if port}
    for path, url in _asked(settings):
        host, port, _ = _place(url)
        if port in own and (is_loopback(host) or host in _WILDCARDS):
            yield path, f"is this proxy itself: {own[port]}.port is {port}"


def _addresses(settings: Settings) -> Iterator[Doubt]:
    for index, network in enumerate(settings.listen.trusted_proxies):
        if network.endswith("/0"):
            at = ("listen", "trusted_proxies", index)
            yield at, "trusts X-Forwarded-For from anyone: list only your own proxies"
    hosts: list[tuple[KeyPath, str]] = [
        (("listen", "host"), settings.listen.host),
        (("admin", "host"), settings.admin.host),
        *((path, _place(url)[0]) for path, url in _asked(settings)),
    ]
    for path, host in hosts:
        numeric = host.replace(".", "").isdigit()
        if (numeric or ":" in host) and not _is_address(host):
            yield path, f"{host} is neither an IP address nor a host name"


def _probes(settings: Settings) -> Iterator[Doubt]:
    health = settings.health
    at: KeyPath = ("health",)
    for path, probe in ((at, health), ((*at, "deep"), health.deep)):
        if probe.timeout_s > probe.interval_s:
            yield (
                (*path, "timeout_s"),
                f"{probe.timeout_s:g} s is above interval_s ({probe.interval_s:g} s): the next"
                " probe is due before this one has failed",
            )


def secrets_of(settings: Settings) -> Iterator[tuple[KeyPath, SecretStr, bool]]:
    """Each secret: the path of its key, the secret, and whether it comes from a file."""
    values = dict(leaves(settings))
    for at, secret in values.items():
        file_at = (*at[:-1], f"{at[-1]}_file")
        if isinstance(secret, SecretStr) and file_at in values:
            in_file = values[file_at] is not None
            yield file_at if in_file else at, secret, in_file


def _secrets(settings: Settings) -> Iterator[Doubt]:
    for at, secret, _ in secrets_of(settings):
        # Lines of headers are no keys, and need not hold one.
        if at[0] != "tracing" and len(secret.get_secret_value()) < KEY_CHARS_MIN:
            yield (
                at,
                f"is a key of fewer than {KEY_CHARS_MIN} characters, which can be guessed:"
                " `openssl rand -hex 32` makes a good one",
            )


def _readers(settings: Settings) -> Iterator[Doubt]:
    """Find a token for readers that keeps nobody from writing."""
    admin = settings.admin
    at: KeyPath = ("admin", "view_token_file" if admin.view_token_file else "view_token")
    if admin.view_token is not None and admin.token is None:
        yield at, "does nothing without admin.token: everybody on this machine may read and write"
    elif admin.view_token is not None and admin.view_token == admin.token:
        yield at, "is the admin token itself: who has it may change everything"


def _certificates(settings: Settings) -> Iterator[Doubt]:
    """Find authorities that tell no tenant, and keep nobody out who has a key."""
    tls, tenants = settings.listen.tls, settings.tenants
    asks = tls is not None and tls.client_ca_file is not None
    if asks and tenants and not any(tenant.certificates for tenant in tenants):
        yield (
            ("listen", "tls", "client_ca_file"),
            "does little: no tenant has certificates, so each request still needs a key",
        )


def _strangers(settings: Settings) -> Iterator[Doubt]:
    """Find an open port: no tenant is asked for, and no backend checks the clients' own keys."""
    tls = settings.listen.tls
    asks = settings.tenants or (tls is not None and tls.client_ca_file is not None)
    if asks or is_loopback(settings.listen.host):
        return
    for pool in settings.pools:
        keyed = pool.api_key or [each for each in pool.backends if each.api_key]
        if keyed and pool.forward_authorization != "none":
            at: KeyPath = ("listen", "host")
            yield at, f"lets anybody who reaches it use the key of pool {pool.name}: list tenants"
            return


def _forgetting(settings: Settings) -> Iterator[Doubt]:
    if settings.state.dir is None:
        for number, tenant in enumerate(settings.tenants):
            limits = tenant.limits
            for key in ("tokens_per_day", "requests_per_day"):
                if limits is not None and getattr(limits, key) is not None:
                    at = ("tenants", number, "limits", key)
                    yield at, "is full again after each restart: set state.dir to remember it"


def _fleet(settings: Settings) -> Iterator[Doubt]:
    """Find a server that is listed twice: each entry would have a load of its own."""
    seen: dict[tuple[str, int, str], list[tuple[int, KeyPath]]] = {}
    for path, url in _urls(settings):
        index = path[1]
        assert isinstance(index, int)
        others = seen.setdefault(_place(url), [])
        for other, at in others[:1] + others[-1:]:
            if other == index or _share_models(settings.pools[other], settings.pools[index]):
                twin = spell(at[:-1])
                yield path, f"is the same server as {twin}: list it once, or its load counts twice"
                break
        others.append((index, path))


def _affinity(settings: Settings) -> Iterator[Doubt]:
    policies = {pool.policy for pool in settings.pools}
    if settings.affinity.strict and "token_cost" not in policies:
        yield ("affinity", "strict"), "does nothing: no pool has the policy token_cost"


def _holding(settings: Settings) -> Iterator[Doubt]:
    held = settings.admission.hold_for_backend_s > 0.0
    if held and not [each for each in settings.pools if each.admission]:
        at = ("admission", "hold_for_backend_s")
        yield at, "does nothing: no pool has `admission: true`"


def _degradation(settings: Settings) -> Iterator[Doubt]:
    at = ("admission", "degrade")
    if not settings.admission.degrade:
        for index, tenant in enumerate(settings.tenants):
            if tenant.degrade:
                yield ("tenants", index, "degrade"), "does nothing: admission.degrade has no steps"
    elif not settings.admission.enabled:
        yield at, "does nothing while admission.enabled is false"
    elif settings.tenants and not [each for each in settings.tenants if each.degrade]:
        yield at, "does nothing: no tenant has `degrade: true`"
    falls_back = [each for route in settings.routes for each in route.fallbacks]
    if not [each for each in falls_back if each.on is None or "overload" in each.on]:
        for index, step in enumerate(settings.admission.degrade):
            if step.fall_back:
                yield (*at, index), "does nothing: no route has a fall-back for `overload`"


def _of_pool(pool: PoolSettings, at: KeyPath) -> Iterator[Doubt]:
    keyed = pool.api_key is not None or pool.api_key_file is not None
    if pool.forward_authorization == "client" and not keyed and not pool.models:
        yield (
            (*at, "forward_authorization"),
            "only clients have the backends' key, so penstock cannot ask for their models and"
            " /v1/models lists none: name them in pools[].models",
        )
    seen = set()
    for index, model in enumerate(pool.models):
        if model in seen:
            yield (*at, "models", index), f"{model} is in this list twice"
        seen.add(model)
    if pool.tls is not None:
        plain = [each.name for each in pool.backends if not each.url.startswith("https:")]
        key = "ca_file" if pool.tls.ca_file is not None else "cert_file"
        if pool.backends and len(plain) == len(pool.backends):
            yield (*at, "tls", key), "does nothing: no backend of this pool is https"
        elif plain:
            yield (*at, "tls", key), f"does nothing for {plain[0]}, whose url is http"


def _share_models(one: PoolSettings, other: PoolSettings) -> bool:
    """Whether two pools may serve the same model. An empty list may hold any model."""
    return not one.models or not other.models or not set(one.models).isdisjoint(other.models)


def _urls(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    for number, pool in enumerate(settings.pools):
        for index, backend in enumerate(pool.backends):
            yield ("pools", number, "backends", index, "url"), backend.url


def _asked(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """All servers to which something of a request is sent."""
    yield from _urls(settings)
    if settings.classifier is not None:
        yield ("classifier", "url"), settings.classifier.url


def _place(url: str) -> tuple[str, int, str]:
    """Host, port and path."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = "127.0.0.1" if host == "localhost" else host
    return host, parts.port or _PORTS[parts.scheme], parts.path


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
