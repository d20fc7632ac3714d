"""Answers without a backend: the fleet's health, its models, CORS, and errors of requests.

`/v1/models` lists the models of all backends that can serve. A name that only routes know is listed
while some pool that may answer for it can serve. Its card tells the model that it stands for as
`root`, where that is one: answers tell it anyway.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
import orjson

from penstock.balancing.fleet import Fleet, Pool
from penstock.balancing.routes.decision import Rule, Target
from penstock.balancing.routes.table import RouteTable
from penstock.proxy.data.account import count, refused
from penstock.proxy.data.answer import Answer
from penstock.proxy.data.client import Client
from penstock.proxy.data.endpoints import (
    MODEL,
    MODELS,
    dialect_of,
    is_of_models,
    speaks_anthropic,
)
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.dialects import POOLING
from penstock.proxy.errors.client import ModelNotFound
from penstock.proxy.errors.error import PenstockError
from penstock.proxy.errors.own import Draining
from penstock.proxy.wire.header_fields import Headers
from penstock.proxy.wire.heads import RequestHead

_JSON: Final[Headers] = [(b"content-type", b"application/json")]

_OWNER: Final = "penstock"
_ROOT: Final = b'{"message":"This is penstock. Its APIs are below /v1; GET /health tells more."}'
_card: Final = msgspec.json.Decoder(
    msgspec.defstruct("_Card", [("max_model_len", int | None, None)])
)


def answer_here(plane: DataPlane, head: RequestHead, answer: Answer) -> None:
    """Answer a request that needs no backend. Raises a PenstockError."""
    status, body, headers = 200, b"", _JSON
    serves = any(backend.can_serve for backend in plane.fleet.backends)
    if head.method == b"OPTIONS":
        status, headers = 204, []
    elif head.path == b"/":
        body = _ROOT
    elif is_of_models(head.path):
        if not serves:
            raise plane.refusals.no_backend()
        allowed = plane.budgets.models_of(head.tenant)
        aliases = alias_cards(plane.routes, plane.fleet, head.tenant)
        anthropic = speaks_anthropic(head)
        body = models_told(head.path, plane.fleet.pools, allowed, aliases, anthropic=anthropic)
    elif plane.draining or not serves:
        error = Draining() if plane.draining else plane.refusals.no_backend()
        status, body = error.status, orjson.dumps({"status": error.code})
        headers = [*headers, *error.headers]
    else:
        body = b'{"status":"ok"}'
    answer.whole(status, headers, body)
    count(plane, status)


def refuse_here(
    plane: DataPlane, head: RequestHead | None, answer: Answer, error: PenstockError, client: Client
) -> None:
    """Answer with an error, in the shape of the request's API. `head`: None if unreadable."""
    dialect = dialect_of(head) if head is not None else POOLING
    answer.fail(error, dialect.error_body(error))
    refused(plane, head, answer, error, client)


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
        model = unquote_to_bytes(path[len(MODEL) :]).decode(errors="replace")
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
    for pool in pools:
        for backend in pool.backends:
            if not backend.can_serve:
                continue
            if backend.models is not None:
                yield from backend.models.items()
                continue
            for name in sorted(pool.models):
                card = {"id": name, "object": "model", "created": 0, "owned_by": _OWNER}
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
                and (card := _alias_card(name, rule, routes, fleet, plain=plain)) is not None
            ):
                cards[name] = cards.get(name) or card
            elif plain and not rule.targets and name not in cards:
                cards[name] = None
    return cards


def _alias_card(
    name: str, rule: Rule, routes: RouteTable, fleet: Fleet, *, plain: bool
) -> bytes | None:
    """None: nothing can answer for it now."""
    targets = [*rule.targets, *[each.target for each in rule.fallbacks]]
    told = [_context_tokens(each, name, routes, fleet) for each in targets]
    lengths = [length for length in told if length is not None]
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


def _context_tokens(target: Target, name: str, routes: RouteTable, fleet: Fleet) -> int | None:
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
                card: Any = _card.decode(listed) if listed else None
                return card.max_model_len or 0 if listed else 0
    return None
