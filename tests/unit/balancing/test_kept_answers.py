"""How much of its answers a backend may have held here, beside clients and other backends."""

from penstock.balancing.load import KEPT_BYTES_MAX, KeptAnswers, KeptRoom

MIB = 2**20


def backends(count: int, limit_bytes: int) -> tuple[KeptRoom, list[KeptAnswers]]:
    room = KeptRoom(limit_bytes)
    made = [KeptAnswers() for _ in range(count)]
    for each in made:
        each.room = room
    return room, made


def fill(kept: KeptAnswers, client: str) -> None:
    while kept.change(client, MIB // 16):
        pass


def test_many_backends_together_hold_no_more_than_the_room() -> None:
    room, wrong = backends(20, 64 * MIB)
    for each in wrong:
        fill(each, "a")
        fill(each, "b")
    assert 0.9 * 64 * MIB < room.held_bytes <= 64 * MIB
    assert room.held_bytes == sum(each.total_bytes for each in wrong)


def test_a_wrong_backend_leaves_room_for_answers_of_another() -> None:
    _, (wrong, good) = backends(2, 32 * MIB)
    for number in range(100):
        fill(wrong, f"client {number}")
    assert good.change("victim", MIB)
    assert good.change("victim", 2 * MIB)


def test_one_client_leaves_room_for_others_at_its_backend() -> None:
    kept = KeptAnswers()
    fill(kept, "attacker")
    assert kept.total_bytes <= 0.8 * KEPT_BYTES_MAX
    assert kept.change("victim", MIB)


def test_what_was_given_back_is_free() -> None:
    room, (kept, _) = backends(2, 32 * MIB)
    assert kept.change("a", MIB)
    assert kept.change("a", -MIB)
    assert (room.held_bytes, kept.total_bytes, kept.by_client) == (0, 0, {})
