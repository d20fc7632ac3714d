"""Finds names, keys and certificates that occur twice, before or after validation.

It reads plain data and skips parts with a wrong shape. So a repeated name is reported together with
all other errors, at the line of the second one.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256

from pydantic import SecretStr

from penstock.conf.keypath import KeyPath, spell


def repeated_names(tree: Mapping[str, object]) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path of each repeated name, key or certificate, and the problem."""
    yield from _of_fleet(tree.get("pools"))
    yield from _of_tenants(tree.get("tenants"))


def _of_fleet(pools: object) -> Iterator[tuple[KeyPath, str]]:
    seen_pools: dict[str, KeyPath] = {}
    seen_backends: dict[str, KeyPath] = {}
    for pool_path, pool in _mappings(pools, ("pools",)):
        yield from _check(pool, pool_path, seen_pools, "pool")
        for backend_path, backend in _mappings(pool.get("backends"), (*pool_path, "backends")):
            yield from _check(backend, backend_path, seen_backends, "backend")


def _of_tenants(tenants: object) -> Iterator[tuple[KeyPath, str]]:
    seen_tenants: dict[str, KeyPath] = {}
    seen_keys: dict[bytes, KeyPath] = {}
    seen_certificates: dict[str, KeyPath] = {}
    for tenant_path, tenant in _mappings(tenants, ("tenants",)):
        yield from _check(tenant, tenant_path, seen_tenants, "tenant")
        for key_path, key in _mappings(tenant.get("keys"), (*tenant_path, "keys")):
            digest = _digest(key)
            first = seen_keys.setdefault(digest, key_path) if digest else key_path
            if first != key_path:
                yield key_path, f"is the same key as {spell(first)}; each key is for one tenant"
        yield from _of_certificates(tenant.get("certificates"), tenant_path, seen_certificates)


def _of_certificates(
    names: object, tenant_path: KeyPath, seen: dict[str, KeyPath]
) -> Iterator[tuple[KeyPath, str]]:
    for index, name in enumerate(names if isinstance(names, list | tuple) else ()):
        path = (*tenant_path, "certificates", index)
        first = seen.setdefault(name, path) if isinstance(name, str) else path
        if first != path:
            yield path, f"{name[:63]!r} is taken by {spell(first)}; each name is for one tenant"


def _digest(entry: dict[str, object]) -> bytes:
    """SHA-256 of the key. Empty if the entry has a wrong shape."""
    key, digest = (
        value.get_secret_value() if isinstance(value, SecretStr) else value
        for value in (entry.get("key"), entry.get("key_sha256"))
    )
    if isinstance(key, str):
        return sha256(key.encode("utf-8", "replace")).digest()
    try:
        return bytes.fromhex(digest) if isinstance(digest, str) else b""
    except ValueError:
        return b""


def _check(
    entry: dict[str, object], path: KeyPath, seen: dict[str, KeyPath], kind: str
) -> Iterator[tuple[KeyPath, str]]:
    name = entry.get("name")
    if not isinstance(name, str):
        return
    first = seen.setdefault(name, path)
    if first != path:
        problem = f"{kind} name {name[:63]!r} is taken by {spell(first)}; names must be unique"
        yield (*path, "name"), problem


def _mappings(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, dict[str, object]]]:
    for index, item in enumerate(value if isinstance(value, list | tuple) else ()):
        if isinstance(item, dict):
            yield (*path, index), item
