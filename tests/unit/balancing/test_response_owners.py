"""Who made a response: remembered within a limit and for a time, and asked first."""

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import AdminState, Backend, State
from penstock.balancing.gate import Gate, NoBackend, OwnerAway
from penstock.balancing.lease import Reason
from penstock.balancing.reader import GENERATION, Reader
from penstock.balancing.response_owners import ID_CHARS_MAX, KEPT_S, OWNERS_MAX, ResponseOwners
from penstock.balancing.tokens import TokenEstimator
from tests.unit.balancing.backends import gate_over, numbered, ready

JSON = [(b"content-type", b"application/json")]


def test_the_oldest_go_at_the_limit() -> None:
    owners = ResponseOwners()
    for number in range(OWNERS_MAX):
        owners.put(f"resp_{number}", "a", 0.0)
    assert len(owners.table) == OWNERS_MAX
    owners.put("resp_0", "b", 0.0)  # the same again is the youngest, not one more
    owners.put("resp_new", "a", 0.0)
    assert len(owners.table) == OWNERS_MAX
    found = [owners.find(f"resp_{each}", 0.0) for each in (0, 1, 2, "new")]
    assert found == ["b", None, "a", "a"]


def test_a_time_later_they_are_forgotten_and_take_no_memory() -> None:
    owners = ResponseOwners()
    owners.put("resp_1", "a", 100.0)
    owners.put("resp_2", "a", 101.0)
    assert owners.find("resp_1", 99.9 + KEPT_S) == "a"
    assert owners.find("resp_1", 100.0 + KEPT_S) is None
    owners.put("resp_3", "a", 101.0 + KEPT_S)
    assert len(owners.table) == 1


def test_ids_that_nobody_could_ask_for_are_not_kept() -> None:
    owners = ResponseOwners()
    owners.put("r" * ID_CHARS_MAX, "a", 0.0)
    owners.put("r" * (ID_CHARS_MAX + 1), "a", 0.0)
    assert len(owners.table) == 1


@pytest.mark.parametrize(
    ("path", "body", "response_id"),
    [
        ("/v1/responses", b'{"previous_response_id":"resp_1"}', "resp_1"),
        ("/v1/responses", b'{"previous_response_id":null}', None),
        ("/v1/chat/completions", b'{"previous_response_id":7}', None),
        ("/v1/responses", b"{}", None),
        ("/v1/responses/resp_1", b"", "resp_1"),
        ("/v1/responses/resp_1/cancel", b"", "resp_1"),
        ("/v1/responses/resp_1/cancel", b"{}", "resp_1"),
    ],
)
def test_what_a_request_refers_to(path: str, body: bytes, response_id: str | None) -> None:
    assert Reader(TokenEstimator()).read(path, JSON, body, GENERATION).response_id == response_id


@pytest.fixture
def backends() -> list[Backend]:
    return [ready(name) for name in "abc"]


@pytest.fixture
def gate(backends: list[Backend]) -> Gate:
    return gate_over(backends)


ASK = Ask("/v1/responses/resp_1", response_id="resp_1")


def test_its_backend_is_asked_whatever_its_load(gate: Gate, backends: list[Backend]) -> None:
    gate.owners.put("resp_1", "b", 0.0)
    leases = [gate.choose(ASK, 1.0) for _ in range(20)]
    assert {(lease.backend, lease.reason, lease.bound) for lease in leases} == {
        (backends[1], Reason.AFFINITY, True)
    }
    assert gate.choose(ASK, KEPT_S).backend is not backends[1]


def test_the_others_are_asked_when_it_has_failed(gate: Gate, backends: list[Backend]) -> None:
    gate.owners.put("resp_1", "b", 0.0)
    lease = gate.choose(ASK, 1.0, tried={backends[1]})
    assert (lease.backend is not backends[1], lease.reason) == (True, Reason.COST)


def test_nobody_is_asked_while_it_cannot_be(gate: Gate, backends: list[Backend]) -> None:
    gate.owners.put("resp_1", "b", 0.0)
    backends[1].state = State.EJECTED
    with pytest.raises(NoBackend):
        gate.choose(ASK, 1.0)
    gate.choose(Ask("/v1/responses/other", response_id="other"), 1.0)
    backends[1].doubted = True  # out on suspicion alone: it may well answer
    assert gate.choose(ASK, 1.0).backend is backends[1]


def test_a_drained_one_is_asked_for_what_it_has_and_no_more(
    gate: Gate, backends: list[Backend]
) -> None:
    gate.owners.put("resp_1", "b", 0.0)
    backends[1].admin_state = AdminState.DRAIN
    polled = Ask("/v1/responses/resp_1", response_id="resp_1", engine=False)
    assert gate.choose(polled, 1.0).backend is backends[1]
    with pytest.raises(OwnerAway):
        gate.choose(ASK, 1.0)
    backends[1].admin_state = AdminState.MAINT
    with pytest.raises(OwnerAway):
        gate.choose(polled, 1.0)


def test_one_that_left_the_fleet_is_nobody(gate: Gate, backends: list[Backend]) -> None:
    gate.owners.put("resp_1", "gone", 0.0)
    assert gate.choose(ASK, 1.0).backend in backends


def test_a_conversation_is_as_long_as_was_thought_until_its_backend_has_counted_it() -> None:
    owners = ResponseOwners()
    owners.put("resp_1", "b", 0.0, "acme", "acme", 900)
    assert owners.tokens_of("resp_1", "acme", 1.0) == 900
    owners.count("resp_1", "acme", 1_200)
    owners.count("resp_1", "other", 9_000)
    assert not owners.put("resp_1", "b", 1.0, "other", "other", 9_000)
    assert owners.tokens_of("resp_1", "acme", 1.0) == 1_200
    assert owners.tokens_of("resp_1", "other", 1.0) == 0
    assert owners.tokens_of("resp_1", "acme", KEPT_S) == 0
    owners.count("resp_2", "", 5)
    assert owners.tokens_of("resp_2", "", 1.0) == 0


def test_what_is_forgotten_has_no_length() -> None:
    owners = ResponseOwners()
    for number in range(10):
        owners.put(f"resp_{number}", "b", 0.0, tokens=7)
    owners.table.halve()
    assert sum(owners.tokens_of(f"resp_{number}", "", 1.0) for number in range(10)) == 5 * 7


def test_how_fast_a_stored_conversation_is_read_teaches_nothing() -> None:
    """How much of it the engine still has is not known."""
    only = ready()
    gate = gate_over([only])
    gate.owners.put("resp_1", only.name, 0.0, tokens=50_000)
    ask = Ask("/v1/responses", prompt_tokens=50_010, stream=True, response_id="resp_1")
    before = only.prefill_speed.work_s
    for _ in range(20):
        lease = gate.choose(ask, 1.0)
        lease.first_token(1.01)
        lease.complete(1.02, 1, 50_010)
    assert only.prefill_speed.work_s == before


def test_who_may_hold_it_serves_the_model_fit_or_not(gate: Gate, backends: list[Backend]) -> None:
    backends[0].models = {"m": b"{}"}
    backends[1].models = {"other": b"{}"}
    backends[2].state = State.EJECTED
    assert gate.may_hold(Ask("/v1/responses", model="m")) == {backends[0], backends[2]}
    assert gate.may_hold(ASK) == set(backends)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("others", "learns"),
    [("none", True), ("without the model", True), ("ejected", True), ("one", False)],
)
def test_it_teaches_speed_where_nobody_else_could_serve_the_model(
    stream: bool, others: str, learns: bool
) -> None:
    """Else a client could aim its slow requests at one backend, and make it look slow."""
    fleet = numbered(1 if others == "none" else 2)
    for backend in fleet:
        backend.models = {"m": b""}
    if others == "without the model":
        fleet[1].models = {"other": b""}
    elif others == "ejected":
        fleet[1].state = State.EJECTED
    gate = gate_over(fleet)
    gate.owners.put("resp_1", "b0", 0.0)
    ask = Ask("/", "m", 1_000, stream=stream, max_tokens=10, response_id="resp_1")
    for number in range(8):
        now_s = 10.0 * number
        lease = gate.choose(ask.changed(client=f"{number}"), now_s)
        assert lease.bound
        lease.first_token(now_s + 0.5)
        lease.tokens(10 if stream else 0)
        lease.complete(now_s + 1.0, 10)
    speeds = fleet[0].prefill_speed if stream else fleet[0].decode_speed
    assert bool(speeds.recent.count) == learns
