"""What operators order by command, and what of it lasts."""

from typing import Any

import orjson
import pytest

from penstock.balancing.backend import AdminState, Backend
from penstock.conf.settings import Settings
from penstock.proxy.discovery.operators import ADDED_MAX, STATES_MAX, CannotAdd, Operators

POOLS = [
    {"name": "chat", "backends": [{"name": "a", "url": "http://10.0.0.1:8000"}]},
    {"name": "code", "backends": [{"name": "b", "url": "http://10.0.0.2:8000"}]},
]
SETTINGS = Settings.model_validate({"pools": POOLS})
ENTRY = {"pool": "chat", "url": "http://127.0.0.1:8009"}


def names(operators: Operators, settings: Settings = SETTINGS) -> list[list[str]]:
    return [[each.name for each in pool.backends] for pool in operators.merged(settings).pools]


def backend(name: str) -> Backend:
    return Backend(name, f"http://{name}:8000", "chat")


def again(operators: Operators) -> Operators:
    """The orders as they are known after a restart."""
    other = Operators()
    other.resume(orjson.loads(orjson.dumps(operators.to_state())))
    return other


def test_an_added_backend_is_used_until_it_is_removed() -> None:
    operators = Operators()
    assert operators.merged(SETTINGS) is SETTINGS
    assert operators.add(SETTINGS, ENTRY, 5.0).name == "127.0.0.1-8009"
    assert names(operators) == [["a", "127.0.0.1-8009"], ["b"]]
    assert operators.origin("127.0.0.1-8009") == {"source": "operator", "since": 5.0}
    assert operators.remove("127.0.0.1-8009")
    assert not operators.remove("127.0.0.1-8009")
    assert names(operators) == [["a"], ["b"]]


def test_it_outlasts_a_restart_and_ends_with_a_reload() -> None:
    operators = Operators()
    operators.add(SETTINGS, ENTRY | {"weight": 2, "name": "extra"}, 5.0)
    operators = again(operators)
    (_, extra), _ = [pool.backends for pool in operators.merged(SETTINGS).pools]
    assert (extra.name, extra.weight) == ("extra", 2.0)
    operators.drop_added()
    assert names(operators) == [["a"], ["b"]]
    assert operators.to_state() == {}


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ([], "must be a JSON object"),
        ({"url": "http://10.0.0.9:8000"}, "pool must be one of chat, code"),
        (ENTRY | {"url": 5}, "must have a url"),
        (ENTRY | {"url": "ftp://10.0.0.9"}, "url"),
        (ENTRY | {"weight": -1}, "weight"),
        (ENTRY | {"api_key": "secret"}, "not 'api_key'"),
        (ENTRY | {"name": "b"}, "the name b is taken"),
        (ENTRY | {"url": "http://10.0.0.1:8000"}, "has a backend at"),
    ],
)
def test_what_is_not_added_is_told_why(entry: Any, why: str) -> None:
    operators = Operators()
    with pytest.raises(CannotAdd) as refusal:
        operators.add(SETTINGS, entry, 5.0)
    assert why in str(refusal.value)
    assert names(operators) == [["a"], ["b"]]


def test_what_the_configuration_names_itself_is_not_doubled() -> None:
    """A restart may read another configuration than the one that it was added to."""
    operators = Operators()
    operators.add(SETTINGS, ENTRY, 5.0)
    more = {"name": "own", "url": "http://127.0.0.1:8009"}
    own = {"name": "chat", "backends": [*POOLS[0]["backends"], more]}
    assert names(operators, Settings.model_validate({"pools": [own]})) == [["a", "own"]]
    gone = Settings.model_validate({"pools": [POOLS[1]]})
    assert names(operators, gone) == [["b"]]


def test_as_many_as_that_are_added() -> None:
    operators = Operators()
    for number in range(ADDED_MAX):
        operators.add(SETTINGS, {"pool": "chat", "url": f"http://gpu:{1024 + number}"}, 5.0)
    with pytest.raises(CannotAdd, match="in the configuration"):
        operators.add(SETTINGS, ENTRY, 5.0)


def test_a_state_lasts_for_a_backend_of_the_same_name() -> None:
    operators, first = Operators(), backend("a")
    operators.set_state(first, AdminState.DRAIN)
    for known in (operators, again(operators)):
        after, other = backend("a"), backend("b")
        known.apply([after, other])
        assert (after.admin_state, other.admin_state) == (AdminState.DRAIN, AdminState.READY)
    operators.set_state(first, AdminState.READY)
    after = backend("a")
    again(operators).apply([after])
    assert after.admin_state is AdminState.READY


def test_states_of_names_without_end_are_bounded_and_the_oldest_goes() -> None:
    operators = Operators()
    for number in range(STATES_MAX + 1):
        operators.set_state(backend(f"pod-{number}"), AdminState.MAINT)
    states = operators.to_state()["states"]
    assert (len(states), "pod-0" in states, f"pod-{STATES_MAX}" in states) == (
        STATES_MAX,
        False,
        True,
    )


@pytest.mark.parametrize(
    "known",
    [
        {"states": ["a"], "added": {"a": 1}},
        {"states": {"a": "gone"}, "added": [5, {"url": "x"}, {"url": "http://a:1", "pool": 5}]},
    ],
)
def test_nonsense_in_the_file_is_left_out(known: dict[str, Any]) -> None:
    operators = Operators()
    operators.resume(known)
    assert operators.to_state() == {}
