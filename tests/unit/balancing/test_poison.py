"""What engines died on is remembered: for a time, up to a number, of each tenant apart."""

from penstock.balancing.poison import MEMORY_S, REMEMBERED_MAX, Poison, mark_of

CHAT = "/v1/chat/completions"


def test_the_same_bytes_are_known_for_ten_minutes() -> None:
    poison = Poison()
    poison.add("", mark_of(CHAT, b"kills"), 100.0)
    assert poison.holds("", CHAT, b"kills", 100.0)
    assert poison.holds("", CHAT, b"kills", 100.0 + MEMORY_S - 0.1)
    assert not poison.holds("", CHAT, b"kills ", 100.0)
    assert not poison.holds("", CHAT, b"Kills", 100.0)
    assert not poison.holds("", "/v1/completions", b"kills", 100.0)
    assert not poison.holds("", CHAT, b"kills", 100.0 + MEMORY_S)


def test_what_kills_again_is_remembered_anew() -> None:
    poison = Poison()
    poison.add("", mark_of(CHAT, b"kills"), 0.0)
    poison.add("", mark_of(CHAT, b"other"), 300.0)
    poison.add("", mark_of(CHAT, b"kills"), 500.0)
    assert poison.holds("", CHAT, b"kills", 1_000.0)
    assert not poison.holds("", CHAT, b"other", 1_000.0)
    poison.add("", mark_of(CHAT, b"new"), 1_000.0)
    assert len(poison) == 2


def test_what_is_one_tenants_is_not_anothers() -> None:
    poison = Poison()
    poison.add("a", mark_of(CHAT, b"kills"), 0.0)
    assert poison.holds("a", CHAT, b"kills", 1.0)
    assert not poison.holds("b", CHAT, b"kills", 1.0)


def test_what_was_served_after_all_is_forgotten() -> None:
    poison = Poison()
    for tenant in "ab":
        poison.add(tenant, mark_of(CHAT, b"hello"), 0.0)
        poison.add(tenant, mark_of(CHAT, b"kills"), 0.0)
    poison.served(mark_of(CHAT, b"hello"))
    for tenant in "ab":
        assert not poison.holds(tenant, CHAT, b"hello", 1.0)
        assert poison.holds(tenant, CHAT, b"kills", 1.0)


def test_a_tenant_fills_its_own_share_and_no_others() -> None:
    poison = Poison()
    poison.add("victim", mark_of(CHAT, b"kills"), 0.0)
    for number in range(20 * REMEMBERED_MAX):
        poison.add("attacker", mark_of(CHAT, b"%d" % number), number / 1_000)
    assert len(poison) == REMEMBERED_MAX + 1
    assert poison.holds("victim", CHAT, b"kills", 2.0)
    assert not poison.holds("attacker", CHAT, b"0", 2.0)
    assert poison.holds("attacker", CHAT, b"%d" % (20 * REMEMBERED_MAX - 1), 2.0)
    poison.add("later", mark_of(CHAT, b"new"), 1_000.0)
    assert len(poison) == 1
