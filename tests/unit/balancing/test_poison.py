"""What engines died on is remembered: for a time, up to a number, of each tenant apart."""

from penstock.balancing.poison import MEMORY_S, REMEMBERED_MAX, Marking, Poison, mark_of

CHAT = b"/v1/chat/completions"


def holds(poison: Poison, tenant: str, path: bytes, body: bytes, now_s: float) -> bool:
    if not poison.may_hold(len(body), now_s):
        return False
    return poison.holds(tenant, mark_of(path, body), now_s)


def test_the_same_bytes_are_known_for_ten_minutes() -> None:
    poison = Poison()
    poison.add("", mark_of(CHAT, b"kills"), 100.0)
    assert holds(poison, "", CHAT, b"kills", 100.0)
    assert holds(poison, "", CHAT, b"kills", 100.0 + MEMORY_S - 0.1)
    assert not holds(poison, "", CHAT, b"kills ", 100.0)
    assert not holds(poison, "", CHAT, b"Kills", 100.0)
    assert not holds(poison, "", b"/v1/completions", b"kills", 100.0)
    assert not holds(poison, "", CHAT, b"kills", 100.0 + MEMORY_S)


def test_what_kills_again_is_remembered_anew() -> None:
    poison = Poison()
    poison.add("", mark_of(CHAT, b"kills"), 0.0)
    poison.add("", mark_of(CHAT, b"other"), 300.0)
    poison.add("", mark_of(CHAT, b"kills"), 500.0)
    assert holds(poison, "", CHAT, b"kills", 1_000.0)
    assert not holds(poison, "", CHAT, b"other", 1_000.0)
    poison.add("", mark_of(CHAT, b"new"), 1_000.0)
    assert len(poison) == 2


def test_what_is_one_tenants_is_not_anothers() -> None:
    poison = Poison()
    poison.add("a", mark_of(CHAT, b"kills"), 0.0)
    assert holds(poison, "a", CHAT, b"kills", 1.0)
    assert not holds(poison, "b", CHAT, b"kills", 1.0)


def test_what_was_served_after_all_is_forgotten() -> None:
    poison = Poison()
    for tenant in "ab":
        poison.add(tenant, mark_of(CHAT, b"hello"), 0.0)
        poison.add(tenant, mark_of(CHAT, b"kills"), 0.0)
    poison.served(mark_of(CHAT, b"hello"))
    for tenant in "ab":
        assert not holds(poison, tenant, CHAT, b"hello", 1.0)
        assert holds(poison, tenant, CHAT, b"kills", 1.0)


def test_a_tenant_fills_its_own_share_and_no_others() -> None:
    poison = Poison()
    poison.add("victim", mark_of(CHAT, b"kills"), 0.0)
    for number in range(20 * REMEMBERED_MAX):
        poison.add("attacker", mark_of(CHAT, b"%d" % number), number / 1_000)
    assert len(poison) == REMEMBERED_MAX + 1
    assert holds(poison, "victim", CHAT, b"kills", 2.0)
    assert not holds(poison, "attacker", CHAT, b"0", 2.0)
    assert holds(poison, "attacker", CHAT, b"%d" % (20 * REMEMBERED_MAX - 1), 2.0)
    poison.add("later", mark_of(CHAT, b"new"), 1_000.0)
    assert len(poison) == 1


def test_a_body_in_pieces_has_the_mark_of_the_whole() -> None:
    body = bytes(range(256)) * 1_000
    for size in (1, 255, 100_000, len(body)):
        marking = Marking(CHAT)
        for at in range(0, len(body), size):
            marking.add(body[at : at + size])
        assert marking.mark == mark_of(CHAT, body)
    assert Marking(b"/v1/completions").mark != Marking(CHAT).mark
