"""Answers `/v1/models` and `/v1/models/{id}`: the models of all backends that can serve."""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote_to_bytes

from penstock.balancing.backend import Backend
from penstock.proxy.errors.client import ModelNotFound

MODELS: Final = b"/v1/models"
_MODEL: Final = b"/v1/models/"


def is_of_models(path: bytes) -> bool:
    """Whether the path asks for the list or for one model. Ids may hold slashes."""
    return path == MODELS or path.startswith(_MODEL)


def models_told(
    path: bytes,
    backends: Iterable[Backend],
    allowed: Collection[str] = (),
    aliases: Mapping[str, bytes | None] = MappingProxyType({}),
) -> bytes:
    """The list with each model once, or the card of the model in the path. Raises ModelNotFound.

    `allowed`: the models that the client may ask for. Empty: all. `aliases`: names of routes,
    None for one that a route refuses.
    """
    cards: dict[str, bytes] = {}
    for backend in backends:
        if backend.can_serve and backend.models:
            for listed, its_card in backend.models.items():
                if not allowed or listed in allowed:
                    cards.setdefault(listed, its_card)
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
