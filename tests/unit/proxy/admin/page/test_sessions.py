"""Sessions of the page: for how long they count, and whom they push out."""

from itertools import count

from penstock.proxy.admin.guard import LIFETIME_S, Sessions, digest_of
from penstock.proxy.admin.page.entrance import (
    ADDRESSES_MAX,
    ALL_MAX_S,
    FREE,
    OWN_MAX_S,
    QUIET_S,
    WAITING_MAX,
    Attempts,
)

FULL, VIEW = digest_of("the admin token"), digest_of("the readers' token")


def sessions(most: int = 8) -> Sessions:
    """Ids are s0, s1, …"""
    numbers = count()
    return Sessions(most, lambda _: f"s{next(numbers)}")


def test_a_session_counts_until_its_time_is_over() -> None:
    known = sessions()
    mine = known.begin(FULL, "a", 0.0)
    assert known.token_of(mine, LIFETIME_S - 1.0) == FULL
    assert known.token_of("s1", 0.0) is None
    assert known.token_of("", 0.0) is None
    assert known.token_of(mine, LIFETIME_S) is None
    assert len(known) == 0


def test_who_leaves_ends_one_session_only() -> None:
    known = sessions()
    first, second = known.begin(FULL, "a", 0.0), known.begin(FULL, "a", 0.0)
    assert known.end(first)
    assert not known.end(first)
    assert (known.token_of(first, 1.0), known.token_of(second, 1.0)) == (None, FULL)


def test_another_token_ends_all_of_the_old_one() -> None:
    known = sessions()
    full, view = known.begin(FULL, "a", 0.0), known.begin(VIEW, "a", 0.0)
    known.follow({FULL, VIEW})
    assert known.token_of(full, 1.0) == FULL
    known.follow({digest_of("a new admin token"), VIEW})
    assert (known.token_of(full, 1.0), known.token_of(view, 1.0)) == (None, VIEW)
    known.follow({FULL, VIEW})  # nor does it come back with the old token
    assert known.token_of(full, 1.0) is None


def test_readers_push_out_nobody_who_may_change_something() -> None:
    known = sessions(8)
    admin = known.begin(FULL, "a", 0.0)
    readers = [known.begin(VIEW, f"address {number}", 1.0) for number in range(100)]
    assert len(known) == 9
    assert known.token_of(admin, 2.0) == FULL
    assert sum(known.token_of(each, 2.0) is not None for each in readers) == 8


def test_an_address_pushes_out_its_own_sessions() -> None:
    known = sessions(8)
    victim = known.begin(FULL, "victim", 0.0)
    for _ in range(1_000):
        known.begin(FULL, "attacker", 1.0)
    assert known.token_of(victim, 2.0) == FULL
    assert len(known) == 8


def test_of_ids_and_tokens_only_digests_are_kept() -> None:
    known = Sessions()
    mine = known.begin(FULL, "a", 0.0)
    assert len(mine) >= 43  # 256 bits
    assert mine not in repr(vars(known))
    assert known.begin(FULL, "a", 0.0) != mine


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
