"""Responses that nobody knows: looked for within bounds of each client's own."""

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.gate import Gate, NoBackend, UnknownResponse
from penstock.balancing.response_owners import (
    ASKS_MAX,
    ASKS_PER_S,
    BYTES_PER_ASK,
    CLIENTS_MAX,
    NOWHERE_S,
    Searches,
)
from tests.unit.balancing.backends import gate_over, numbered


def fleet(size: int) -> tuple[Gate, list[Backend]]:
    backends = numbered(size)
    return gate_over(backends), backends


def look_for(
    gate: Gate, response_id: str, now_s: float, client: str = "a", body_bytes: int = 0
) -> int:
    """How many backends are asked for it, of which none has it."""
    ask = Ask("/v1/responses", response_id=response_id, client=client, engine=False)
    tried: set[Backend] = set()
    while True:
        try:
            lease = gate.choose(ask, now_s, tried)
        except (UnknownResponse, NoBackend):
            break
        lease.end(now_s)
        tried.add(lease.backend)
        if not gate.may_search(ask, body_bytes, now_s):
            break
    gate.is_lost(ask, tried, now_s)
    return len(tried)


def test_what_is_nowhere_is_looked_for_once_in_a_while() -> None:
    gate, _ = fleet(40)
    assert look_for(gate, "resp_1", 0.0) == 40
    assert look_for(gate, "resp_1", 0.5 * NOWHERE_S) == 0
    assert look_for(gate, "resp_1", 0.0, client="b") == 40  # not for having been told to another
    assert look_for(gate, "resp_1", NOWHERE_S) == 40


def test_one_of_many_ids_has_no_more_asked_than_its_budget() -> None:
    gate, _ = fleet(40)
    requests, seconds = 1_000, 10.0
    asked = sum(
        look_for(gate, f"resp_{each}", each * seconds / requests) for each in range(requests)
    )
    assert asked <= requests + ASKS_MAX + seconds * ASKS_PER_S
    assert look_for(gate, "resp_1", seconds, client="victim") == 40


def test_a_large_body_goes_to_few() -> None:
    gate, _ = fleet(40)
    size = 4 << 20
    sent = sum(size * look_for(gate, f"resp_{each}", 0.0, body_bytes=size) for each in range(10))
    assert sent <= 10 * size + ASKS_MAX * BYTES_PER_ASK


def test_a_fleet_larger_than_the_budget_can_be_asked_nonetheless() -> None:
    gate, _ = fleet(int(ASKS_MAX) + 200)
    assert look_for(gate, "resp_1", 0.0) == ASKS_MAX + 200


def test_what_is_made_meanwhile_is_found() -> None:
    gate, backends = fleet(3)
    ask = Ask("/v1/responses/resp_1", response_id="resp_1", client="a", engine=False)
    look_for(gate, "resp_1", 0.0)
    with pytest.raises(UnknownResponse):
        gate.choose(ask, 1.0)
    assert gate.explain(ask, 1.0).chosen == []
    gate.owners.put("resp_1", "b1", 1.0)
    assert gate.choose(ask, 1.0).backend is backends[1]
    assert look_for(gate, "resp_1", 1.0) == 1  # its maker alone, once all have been asked


def test_one_that_is_away_may_still_have_it() -> None:
    gate, backends = fleet(3)
    backends[2].state = State.EJECTED
    ask = Ask("/v1/responses/resp_1", response_id="resp_1", client="a")
    assert not gate.is_lost(ask, set(backends[:2]), 0.0)
    assert look_for(gate, "resp_1", 1.0) == 2
    assert look_for(gate, "resp_1", 2.0) == 2


def test_clients_are_bounded() -> None:
    searches = Searches()
    for number in range(2 * CLIENTS_MAX):
        searches.may_go_on(f"c{number}", 0, 4, 0.0)
        searches.found_nowhere(f"c{number}", "resp_1", None, 0.0)
    assert len(searches._budgets) == CLIENTS_MAX
