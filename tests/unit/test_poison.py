"""What two engines died on is remembered, for a time and up to a number."""

from balancing.poison import MEMORY_S, REMEMBERED_MAX, Poison

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
