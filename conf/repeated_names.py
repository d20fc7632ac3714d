"""Finds names, keys and certificates that occur twice, before or after validation.

It reads plain data and skips parts with a wrong shape. So a repeated name is reported together with
all other errors, at the line of the second one.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Final

from pydantic import SecretStr

from penstock.conf.keypath import KeyPath, spell

_NAME: Final = "{kind} name {shown!r} is taken by {first}; names must be unique"
_PROBLEMS: Final = {
    "key": "is the same key as {first}; each key is for one tenant",
    "certificate": "{shown!r} is taken by {first}; each name is for one tenant",
}


def repeated_names(tree: Mapping[str, object]) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path of each repeated name, key or certificate, and the problem."""
    seen: dict[tuple[str, str], KeyPath] = {}
    for kind, value, path in _given(tree):
        owner = path[:-1] if path[-1] == "name" else path
        first = seen.setdefault((kind, value), owner) if isinstance(value, str) else owner
        if first != owner:
            problem = _PROBLEMS.get(kind, _NAME)
            shown = value[:63] if isinstance(value, str) else ""
            yield path, problem.format(kind=kind, shown=shown, first=spell(first))


def _given(tree: Mapping[str, object]) -> Iterator[tuple[str, object, KeyPath]]:
    """Each name, the digest of each key and each certificate: of what kind, and its path."""
    for at, pool in _mappings(tree.get("pools"), ("pools",)):
        yield "pool", pool.get("name"), (*at, "name")
        for path, backend in _mappings(pool.get("backends"), (*at, "backends")):
            yield "backend", backend.get("name"), (*path, "name")
    for at, tenant in _mappings(tree.get("tenants"), ("tenants",)):
        yield "tenant", tenant.get("name"), (*at, "name")
        for path, key in _mappings(tenant.get("keys"), (*at, "keys")):
            yield "key", _digest(key), path
        names = tenant.get("certificates")
        for index, name in enumerate(names if isinstance(names, list | tuple) else ()):
            yield "certificate", name, (*at, "certificates", index)


def _digest(entry: dict[str, object]) -> str | None:
    """SHA-256 of the key. None if the entry has a wrong shape."""
    key, digest = (
        value.get_secret_value() if isinstance(value, SecretStr) else value
        for value in (entry.get("key"), entry.get("key_sha256"))
    )
    if isinstance(key, str):
        return sha256(key.encode("utf-8", "replace")).hexdigest()
    try:
        return bytes.fromhex(digest).hex() or None if isinstance(digest, str) else None
    except ValueError:
        return None


def _mappings(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, dict[str, object]]]:
    for index, item in enumerate(value if isinstance(value, list | tuple) else ()):
        if isinstance(item, dict):
            yield (*path, index), item
