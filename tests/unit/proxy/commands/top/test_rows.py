"""The order of the backends, what the filter finds, and which columns a width has."""

from typing import Any

import pytest

from penstock.proxy.commands.fleet_table import state_of
from penstock.proxy.commands.top.dialogs import outcome, question
from penstock.proxy.commands.top.lines import heads, placed, row, width_of
from penstock.proxy.commands.top.rows import COLUMNS, facts, ordered, sign_of
from tests.browser.figures import backend, fleet

pytestmark = pytest.mark.once


def names(found: list[Any]) -> str:
    return " ".join([each["name"].removeprefix("gpu-") for each in found])


def shown(width: int, backends: list[dict[str, Any]]) -> list[str]:
    return [column.head for column, _ in placed(COLUMNS, backends, width)]


def test_a_column_sorts_both_ways_and_what_is_not_known_is_last() -> None:
    backends = [backend(1, slower=1.2), backend(2, slower=None), backend(3, slower=3.4)]
    assert names(ordered(backends, "", "SLOWER", down=True)) == "3 1 2"
    assert names(ordered(backends, "", "SLOWER", down=False)) == "1 3 2"
    backends = [backend(10), backend(9), backend(2)]
    assert names(ordered(backends, "", "BACKEND", down=False)) == "2 9 10"


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("DRAIN", "8"), ("unreachable", "6"), ("embed gpu-1", "12"), ("nothing", "")],
)
def test_the_filter_finds_names_pools_and_states(wanted: str, found: str) -> None:
    assert names(ordered(fleet(14), wanted, None, down=False)) == found


def test_a_long_state_takes_the_room_of_columns_that_are_hardly_needed() -> None:
    calm = [backend(1)]
    assert "HELD" in shown(80, calm)
    assert "HELD" not in shown(80, [*calm, backend(2, state="ejected", reason="unreachable")])


@pytest.mark.parametrize("width", [60, 80, 100, 132, 200])
def test_a_row_is_as_wide_as_its_heads_and_no_wider_than_the_screen(width: int) -> None:
    backends = fleet(14)
    columns = placed(COLUMNS, backends, width)
    wide = width_of(heads(columns, "KV", down=True))
    assert wide <= width
    for each in backends:
        assert width_of(row(columns, each, sign_of(each), marked=True)) == wide


def test_the_facts_of_one_backend_fit_on_a_narrow_screen() -> None:
    lines = facts(fleet(14)[6])
    assert max(map(len, lines)) <= 80
    assert "errors     12 connect   failed attempts of the last minutes" in lines
    assert lines[-1] == "last error connect, 40 s ago"


HERE = backend(1)
EMPTIED = backend(1, requests_in_flight=0)


@pytest.mark.parametrize(
    ("one", "state", "others", "says"),
    [
        (
            *(HERE, "drain", [backend(2), backend(3)]),
            "It gets no new requests. The 1 request there may finish.\n"
            "1 of 1 other backend of chat can serve: requests go there.",
        ),
        (
            *(EMPTIED, "maint", [backend(2, can_serve=False), backend(3)]),
            "It gets no new requests and no probes. None runs there.\n"
            "! No other backend of chat can serve: new requests will get 503.",
        ),
        (backend(1, admin_state="drain"), "ready", [], "Requests come at once."),
        (
            *(backend(1, admin_state="maint", state="starting", reason="unprobed"), "ready", []),
            "Its probes must pass before requests come.",
        ),
    ],
)
def test_the_question_says_what_a_change_does(
    one: dict[str, Any], state: str, others: list[dict[str, Any]], says: str
) -> None:
    now, *told = question(one, state, [one, *others])
    begin = f"Now: wanted {one['admin_state']}, state {state_of(one)}"
    assert now == f"{begin}, {one['requests_in_flight']} in flight, pool chat."
    assert "\n".join(told).endswith(says)


def test_the_answer_says_if_nothing_can_serve_now() -> None:
    told = {"name": "gpu-1", "pool": "chat", "admin_state": "drain", "requests_in_flight": 2}
    assert outcome(told | {"pool_can_serve": True}) == "gpu-1: wanted drain, 2 in flight."
    assert "No backend of chat can serve now" in outcome(told | {"pool_can_serve": False})
