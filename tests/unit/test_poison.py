"""What two engines died on is remembered, for a time and up to a number."""

from balancing.ask import Ask
from balancing.backend import Backend, State
from balancing.lease import Lease
from balancing.poison import MEMORY_S, REMEMBERED_MAX, Poison, died_of_it

CHAT = "/v1/chat/completions"


def test_the_same_bytes_are_known_for_ten_minutes() -> None:
    poison = Poison()
    poison.add(CHAT, b"kills", 100.0)
    assert poison.holds(CHAT, b"kills", 100.0)
    assert poison.holds(CHAT, b"kills", 100.0 + MEMORY_S - 0.1)
    assert not poison.holds(CHAT, b"kills ", 100.0)
    assert not poison.holds("/v1/completions", b"kills", 100.0)
    assert not poison.holds(CHAT, b"kills", 100.0 + MEMORY_S)
    assert len(poison) == 0


def test_what_kills_again_is_remembered_anew() -> None:
    poison = Poison()
    poison.add(CHAT, b"kills", 0.0)
    poison.add(CHAT, b"other", 300.0)
    poison.add(CHAT, b"kills", 500.0)
    assert poison.holds(CHAT, b"kills", 1_000.0)
    assert not poison.holds(CHAT, b"other", 1_000.0)
    assert len(poison) == 1


def test_beyond_the_limit_the_oldest_is_forgotten() -> None:
    poison = Poison()
    for number in range(REMEMBERED_MAX + 1):
        poison.add(CHAT, b"%d" % number, float(number) / 1_000)
    assert len(poison) == REMEMBERED_MAX
    assert not poison.holds(CHAT, b"0", 2.0)
    assert poison.holds(CHAT, b"1", 2.0)
    assert poison.holds(CHAT, b"%d" % REMEMBERED_MAX, 2.0)


def test_an_engine_dies_once_and_only_a_sound_one() -> None:
    backend = Backend("a", "http://127.0.0.1:1")
    backend.state = State.READY
    ask = Ask("/v1/completions")
    leases = [Lease(backend, ask, 0.0) for _ in range(3)]
    for lease, now_s, died in zip(leases, (10.0, 10.9, 11.1), (True, True, False), strict=True):
        lease.fail(now_s)
        assert died_of_it(lease, now_s) is died
    whole = Lease(backend, ask, 12.0)
    whole.first_token(12.1)
    whole.complete(12.1)
    again = Lease(backend, ask, 13.0)
    again.fail(14.0)
    assert died_of_it(again, 14.0)
    backend.failures_in_row = 0
    backend.state = State.EJECTED
    last_resort = Lease(backend, ask, 20.0)
    last_resort.fail(20.0)
    assert not died_of_it(last_resort, 20.0)
