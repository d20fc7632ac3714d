"""Attempts to sign in: who guesses waits, and who knows the token waits little."""

from penstock.proxy.admin.page.entrance import (
    ADDRESSES_MAX,
    ALL_MAX_S,
    FREE,
    OWN_MAX_S,
    QUIET_S,
    WAITING_MAX,
    Attempts,
)


def nothing() -> None:
    """Nobody is told."""


def fail(attempts: Attempts, owner: str, now_s: float) -> float:
    """A wrong token. Returns by how long it was put off."""
    attempt = attempts.begin(owner, now_s, nothing)
    attempts.end(attempt, now_s, succeeded=False)
    return attempt.put_off_s


def test_who_mistypes_waits_for_nothing_and_who_guesses_longer_each_time() -> None:
    attempts = Attempts()
    put_off = [fail(attempts, "a", 0.0) for _ in range(40)]
    assert put_off[:FREE] == [0.0] * FREE
    assert put_off == sorted(put_off)
    assert put_off[-1] == OWN_MAX_S
    assert fail(attempts, "a", QUIET_S) == 0.0


def test_a_victim_beside_an_attacker_waits_a_moment_at_most() -> None:
    attempts = Attempts()
    for number in range(10_000):
        fail(attempts, "attacker", number / 1_000)
    assert attempts.begin("victim", 10.0, nothing).put_off_s == ALL_MAX_S
    assert attempts.begin("attacker", 10.0, nothing).put_off_s == OWN_MAX_S


def test_attempts_at_once_are_put_off_like_those_after_each_other() -> None:
    attempts = Attempts()
    at_once = [attempts.begin("a", 0.0, nothing).put_off_s for _ in range(20)]
    assert at_once == [fail(Attempts(), "a", 0.0)] * FREE + at_once[FREE:]
    assert at_once[-1] == OWN_MAX_S


def test_a_right_token_takes_back_one_attempt_and_no_guesses() -> None:
    """Else who has the token for readers could guess the other one for nothing."""
    attempts = Attempts()
    for _ in range(50):
        guess = attempts.begin("a", 0.0, nothing)
        attempts.end(guess, 0.0, succeeded=False)
        right = attempts.begin("a", 0.0, nothing)
        attempts.end(right, 0.0, succeeded=True)
    assert guess.put_off_s == OWN_MAX_S
    honest = Attempts()
    for _ in range(50):
        honest.end(honest.begin("a", 0.0, nothing), 0.0, succeeded=True)
    assert honest.begin("a", 0.0, nothing).put_off_s == 0.0


def test_where_too_many_wait_one_of_the_most_busy_address_gives_way() -> None:
    attempts, displaced = Attempts(), list[str]()
    attempts.begin("victim", 0.0, lambda: displaced.append("victim"))
    for _ in range(500):
        attempts.begin("attacker", 0.0, lambda: displaced.append("attacker"))
    attempts.begin("late", 0.0, lambda: displaced.append("late"))
    assert set(displaced) == {"attacker"}
    assert len(attempts._waiting) == WAITING_MAX


def test_many_addresses_fill_no_memory() -> None:
    attempts = Attempts()
    for number in range(5_000):
        fail(attempts, f"address {number}", 0.0)
    assert len(attempts._counts) == ADDRESSES_MAX
