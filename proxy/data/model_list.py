"""Answers `/v1/models` and `/v1/models/{id}`: the models of all backends that can serve."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

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
    *,
    anthropic: bool = False,
) -> bytes:
    """The list with each model once, or the card of the model in the path. Raises ModelNotFound.

    Of a backend whose own list cannot be read, it lists those that its pool names. `allowed`: the
    models that the client may ask for. Empty: all. `aliases`: names of routes, None for one that a
    route refuses. `anthropic`: in the shapes of Anthropic's API, as one page.
    """
    cards = _cards(pools, allowed, aliases)
    if path != MODELS:
        model = unquote_to_bytes(path[len(_MODEL) :]).decode(errors="replace")
        card = cards.get(model)
        if card is None:
            raise ModelNotFound(model)
        return msgspec.json.encode(_anthropic_card(model)) if anthropic else card
    if anthropic:
        return _anthropic_page(cards)
    return b'{"object":"list","data":[%b]}' % b",".join(cards.values())


def _cards(
    pools: Iterable[Pool], allowed: Collection[str], aliases: Mapping[str, bytes | None]
) -> dict[str, bytes]:
    """Each model that the client may ask for, with its card."""
    cards: dict[str, bytes] = {}
    for name, its_card in _served(pools):
        if not allowed or name in allowed:
            cards.setdefault(name, its_card)
    for alias, told in aliases.items():
        if told is None:
            cards.pop(alias, None)
        elif not allowed or alias in allowed:
            cards.setdefault(alias, told)
    return cards


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
                yield name, msgspec.json.encode(card)


def _anthropic_page(cards: Mapping[str, bytes]) -> bytes:
    data = [_anthropic_card(model) for model in cards]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    page = {"data": data, "has_more": False, "first_id": first, "last_id": last}
    return msgspec.json.encode(page)


def _anthropic_card(model: str) -> dict[str, str]:
    """The card has the epoch for a time that is unknown, as the API says."""
    about = {"display_name": model, "created_at": "1970-01-01T00:00:00Z", "lifecycle": "active"}
    return {"type": "model", "id": model, **about}
