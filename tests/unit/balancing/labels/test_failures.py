"""A classifier that fails is left alone, and one client's failures are its own."""

import pytest

from penstock.balancing.labels.labels import CLIENTS_MAX, HELD_UP_S, IN_A_ROW, Failures

pytestmark = pytest.mark.once


def fails(failures: Failures, client: str, times: int = 1, now_s: float = 0.0) -> None:
    for _ in range(times):
        failures.begins(client)
        failures.ends(client, now_s, answered=False)


def answers(failures: Failures, client: str, now_s: float = 0.0) -> None:
    failures.begins(client)
    failures.ends(client, now_s, answered=True)


def test_after_failures_in_a_row_it_is_left_alone() -> None:
    failures = Failures()
    fails(failures, "a", IN_A_ROW - 1)
    assert failures.may_ask("a", 0.0)
    fails(failures, "a")
    assert not failures.may_ask("a", HELD_UP_S - 0.1)


def test_then_one_at_a_time_tries() -> None:
    failures = Failures()
    fails(failures, "a", IN_A_ROW)
    assert failures.may_ask("a", HELD_UP_S)
    failures.begins("a")
    assert not failures.may_ask("a", HELD_UP_S)
    failures.ends("a", HELD_UP_S, answered=False)
    assert not failures.may_ask("a", 2 * HELD_UP_S - 0.1)
    assert failures.may_ask("a", 2 * HELD_UP_S)
    answers(failures, "a", 2 * HELD_UP_S)
    fails(failures, "a", IN_A_ROW - 1, 2 * HELD_UP_S)
    assert failures.may_ask("a", 2 * HELD_UP_S)


def test_an_answer_ends_a_run() -> None:
    failures = Failures()
    for _ in range(10):
        fails(failures, "a", IN_A_ROW - 1)
        answers(failures, "a")
    assert failures.may_ask("a", 0.0)


def test_one_client_or_two_hold_up_nobody_else() -> None:
    failures = Failures()
    fails(failures, "a", 100)
    fails(failures, "b", 100)
    assert not failures.may_ask("a", 0.0)
    assert failures.may_ask("victim", 0.0)


def test_three_clients_hold_up_all_and_one_of_them_tries() -> None:
    failures = Failures()
    for client in ("a", "b", "c"):
        fails(failures, client, 2)
    assert not failures.may_ask("new", HELD_UP_S - 0.1)
    assert failures.may_ask("new", HELD_UP_S)
    failures.begins("new")
    assert not failures.may_ask("other", HELD_UP_S)
    failures.ends("new", HELD_UP_S, answered=True)
    assert failures.may_ask("other", HELD_UP_S)


def test_who_has_met_no_failure_tries_first() -> None:
    failures = Failures()
    for client in ("a", "b", "c"):
        fails(failures, client, 2)
    for client in ("a", "b", "c"):
        assert not failures.may_ask(client, HELD_UP_S)
    assert failures.may_ask("victim", HELD_UP_S)
    fails(failures, "victim", now_s=HELD_UP_S)  # it does not work for anybody
    assert not failures.may_ask("victim", 2 * HELD_UP_S)
    assert failures.may_ask("other", 2 * HELD_UP_S)
    assert failures.may_ask("a", 3 * HELD_UP_S)


def test_somebodys_answer_shows_that_it_works_for_others() -> None:
    failures = Failures()
    for client in ("a", "b", "c", "d"):
        fails(failures, client, 2)
        answers(failures, "victim")
    assert failures.may_ask("victim", 0.0)


def test_clients_that_fail_are_counted_in_bounded_memory() -> None:
    failures = Failures()
    fails(failures, "a", IN_A_ROW)
    for number in range(CLIENTS_MAX - 1):
        fails(failures, f"c{number}")
    answers(failures, "victim")
    assert not failures.may_ask("a", 0.0)
    fails(failures, "last")
    answers(failures, "victim")
    assert failures.may_ask("a", 0.0)
