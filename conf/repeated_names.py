"""Find names that occur twice in the pools, before or after validation.

It reads plain data and passes over whatever is not in shape, so that a repeated name is told
together with every other error, at the line of the second one.
"""

from collections.abc import Iterator

from conf.keypath import KeyPath, spell


def repeated_names(pools: object) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path of each repeated name and what is wrong with it."""
    seen_pools: dict[str, KeyPath] = {}
    seen_backends: dict[str, KeyPath] = {}
    for pool_path, pool in _mappings(pools, ("pools",)):
        yield from _check(pool, pool_path, seen_pools, "pool")
        for backend_path, backend in _mappings(pool.get("backends"), (*pool_path, "backends")):
            yield from _check(backend, backend_path, seen_backends, "backend")


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
