"""What `/v1/models` lists, also of engines that do not tell penstock their models."""

from typing import Any

import orjson
import pytest

from penstock.proxy.data.local_answers import models_told
from penstock.proxy.errors.client import ModelNotFound
from tests.unit.proxy.data.playbook import Play


def play_of(models: list[str], told: dict[str, bytes] | None) -> Play:
    backends = [{"name": f"b{n}", "url": f"http://10.0.0.{n}:1"} for n in (1, 2)]
    play = Play(pools=[{"name": "p", "models": models, "backends": backends}])
    for each in play.backends:
        each.models = told
    return play


def ids(told: bytes) -> list[Any]:
    return [each["id"] for each in orjson.loads(told)["data"]]


@pytest.mark.parametrize(
    ("named", "told", "listed"),
    [
        (["a", "b"], None, ["a", "b"]),
        ([], None, []),
        (["a", "b"], {"a": b'{"id":"a"}'}, ["a"]),
        ([], {"c": b'{"id":"c"}'}, ["c"]),
    ],
)
def test_names_of_the_configuration_stand_in_for_a_list_that_cannot_be_read(
    named: list[str], told: dict[str, bytes] | None, listed: list[str]
) -> None:
    play = play_of(named, told)
    assert ids(models_told(b"/v1/models", play.plane.fleet.pools)) == listed


def test_a_named_model_has_a_card_for_those_who_may_ask_for_it() -> None:
    play = play_of(["org/a"], None)
    card = orjson.loads(models_told(b"/v1/models/org%2Fa", play.plane.fleet.pools))
    assert (card["id"], card["object"]) == ("org/a", "model")
    assert ids(models_told(b"/v1/models", play.plane.fleet.pools, {"other"})) == []
    with pytest.raises(ModelNotFound):
        models_told(b"/v1/models/b", play.plane.fleet.pools)
