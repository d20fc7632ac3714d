"""Viewers of the page: how many there are, and who gives way."""

from penstock.proxy.admin.page.events import OWN_MAX, VIEWERS_MAX, Viewer, Viewers


class Room:
    """Notes who had to leave."""

    def __init__(self) -> None:
        self.viewers = Viewers()
        self.left: list[str] = []

    def enter(self, owner: str) -> Viewer | None:
        return self.viewers.enter(owner, lambda: self.left.append(owner))


def test_an_address_has_a_share_and_not_all_places() -> None:
    room = Room()
    mine = [room.enter("a") for _ in range(OWN_MAX + 5)]
    assert sum(each is not None for each in mine) == OWN_MAX
    assert room.enter("b") is not None
    assert room.left == []


def test_addresses_with_many_give_way_to_those_with_few() -> None:
    room = Room()
    for number in range(VIEWERS_MAX):
        assert room.enter(f"attacker {number % 2}") is not None
    victims = [room.enter("victim") for _ in range(3)]
    assert None not in victims
    assert set(room.left) == {"attacker 0", "attacker 1"}
    assert len(room.viewers) == VIEWERS_MAX
    assert room.enter("attacker 0") is None


def test_where_all_have_one_the_newest_is_turned_away() -> None:
    room = Room()
    for number in range(VIEWERS_MAX):
        room.enter(f"address {number}")
    assert room.enter("another") is None
    assert room.left == []


def test_who_leaves_makes_room_also_after_giving_way() -> None:
    room = Room()
    all_of_them = [room.enter(f"a{number % 2}") for number in range(VIEWERS_MAX)]
    assert room.enter("b") is not None
    for each in all_of_them:
        assert each is not None
        room.viewers.exit(each)
    assert len(room.viewers) == 1
