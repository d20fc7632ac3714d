"""Sessions of the page: for how long they count, and whom they push out."""

from itertools import count

from penstock.proxy.admin.guard import LIFETIME_S, Sessions, digest_of

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
