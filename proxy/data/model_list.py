"""Answers `/v1/models` and `/v1/models/{id}`: the models of all backends that can serve."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote_to_bytes

import orjson

from penstock.balancing.fleet import Pool
from penstock.proxy.errors.client import ModelNotFound

MODELS: Final = b"/v1/models"
_MODEL: Final = b"/v1/models/"


def is_of_models(path: bytes) -> bool:
    """Whether the path asks for the list or for one model. Ids may hold slashes."""
    return path == MODELS or path.startswith(_MODEL)


def models_told(
    path: bytes,
    pools: Iterable[Pool],
    allowed: Collection[str] = (),
    aliases: Mapping[str, bytes | None] = MappingProxyType({}),
) -> bytes:
    """The list with each model once, or the card of the model in the path. Raises ModelNotFound.

    Of a backend whose own list cannot be read, it lists those that its pool names. `allowed`: the
    models that the client may ask for. Empty: all. `aliases`: names of routes,
    None for one that a route refuses.
    """
    cards: dict[str, bytes] = {}
    for name, its_card in _served(pools):
        if not allowed or name in allowed:
            cards.setdefault(name, its_card)
    for alias, told in aliases.items():
        if told is None:
            cards.pop(alias, None)
        elif not allowed or alias in allowed:
            cards.setdefault(alias, told)
    if path == MODELS:
        return b'{"object":"list","data":[%b]}' % b",".join(cards.values())
    model = unquote_to_bytes(path[len(_MODEL) :]).decode(errors="replace")
    card = cards.get(model)
    if card is None:
        raise ModelNotFound(model)
    return card


def _served(pools: Iterable[Pool]) -> Iterator[tuple[str, bytes]]:
    """The models of all backends that can serve, with their cards."""
    for pool in pools:
        for backend in pool.backends:
            if not backend.can_serve:
                continue
            if backend.models is not None:
                yield from backend.models.items()
                continue
            for name in sorted(pool.models):
                card = {"id": name, "object": "model", "created": 0, "owned_by": "penstock"}
                yield name, orjson.dumps(card)
