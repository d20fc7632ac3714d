"""Which names of routes are listed for whom."""

from typing import Any

import orjson

from penstock.proxy.data.local_answers import alias_cards
from tests.unit.proxy.data.test_routing import Routed

SECRET = {"pool": "large", "model": "secret"}


def test_what_is_listed_for_whom() -> None:
    routes: list[dict[str, Any]] = [
        {"name": "vip", "match": {"model": "a", "headers": {"x-vip": "*"}}, "to": [SECRET]},
        {"name": "all", "match": {"model": "a"}, "to": [{"pool": "small", "model": "qwen"}]},
        {"name": "closed", "match": {"model": "b", "tenant": "t"}, "refuse": "Not for you."},
        {"name": "open", "match": {"model": "b"}, "to": [{"pool": "small"}]},
    ]
    tenants = [{"name": "t", "keys": [{"key": "sk-0123456789abcdef"}]}]
    play = Routed(*routes, tenants=tenants)
    told = alias_cards(play.plane.routes, play.plane.fleet, "t")
    card = told["a"]
    assert card is not None
    assert orjson.loads(card)["root"] is None  # it depends on more than the name
    assert told["b"] is None
    others = alias_cards(play.plane.routes, play.plane.fleet, "u")
    assert others["b"] is not None
    play.close()
