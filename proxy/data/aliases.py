"""The names that only routes know, as `/v1/models` lists them.

A name is listed while some pool that may answer for it can serve. Its card tells the model that it
stands for as `root`, where that is one: answers tell it anyway.
"""

from typing import Final

import msgspec

from penstock.balancing.fleet import Fleet
from penstock.balancing.routes.rule import Rule, Target
from penstock.balancing.routes.table import RouteTable


class _Card(msgspec.Struct):
    max_model_len: int | None = None


_card = msgspec.json.Decoder(_Card)
_OWNER: Final = "penstock"


def alias_cards(routes: RouteTable, fleet: Fleet, tenant: str) -> dict[str, bytes | None]:
    """Each name of a route that this tenant may ask for, with its card. None: a route refuses it.

    A card tells what the name stands for only if that depends on nothing else.
    """
    cards: dict[str, bytes | None] = {}
    decided: set[str] = set()
    for rule in routes.rules:
        match = rule.match
        if match.models is None or (match.tenants is not None and tenant not in match.tenants):
            continue
        for name in sorted(match.models.exact - decided):
            plain = match.asks_only_for_models
            if plain:
                decided.add(name)
            if (
                rule.targets
                and (card := _card_of(name, rule, routes, fleet, plain=plain)) is not None
            ):
                cards[name] = cards.get(name) or card
            elif plain and not rule.targets and name not in cards:
                cards[name] = None
    return cards


def _card_of(
    name: str, rule: Rule, routes: RouteTable, fleet: Fleet, *, plain: bool
) -> bytes | None:
    """None: nothing can answer for it now."""
    targets = [*rule.targets, *[each.target for each in rule.fallbacks]]
    lengths = [
        length for each in targets if (length := _served(each, name, routes, fleet)) is not None
    ]
    if not lengths:
        return None
    models = {each.model or name for each in rule.targets}
    card: dict[str, object] = {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": _OWNER,
        "root": models.pop() if plain and len(models) == 1 else None,
        "parent": None,
    }
    if length := min([each for each in lengths if each], default=0):
        card["max_model_len"] = length
    return msgspec.json.encode(card)


def _served(target: Target, name: str, routes: RouteTable, fleet: Fleet) -> int | None:
    """The longest context there in tokens, 0 if it is not told. None: it cannot serve now.

    An adapter that is still to be loaded can be served, and has the context of its base.
    """
    model = target.model or name
    loads = (target.pool, model) in routes.adapters
    for pool in fleet.pools:
        if pool.name != target.pool:
            continue
        for backend in pool.backends:
            if backend.can_serve and loads:
                return backend.context_tokens(model)
            if backend.can_serve and backend.serves(model):
                listed = (backend.models or {}).get(model)
                return (_card.decode(listed).max_model_len or 0) if listed else 0
    return None
