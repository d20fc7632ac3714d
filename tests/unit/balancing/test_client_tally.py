"""How many events were of others than the most frequent client."""

import pytest

from penstock.balancing.client_tally import VOTES_MAX, ClientTally


@pytest.mark.parametrize(
    ("clients", "others"),
    [("a" * 9, 0), ("aaab" * 9, 9), ("aaaaaaaaab", 1), ("abc" * 3, 4), ("baaa", 1)],
)
def test_others_are_counted_beside_a_flood(clients: str, others: int) -> None:
    tally = ClientTally()
    for client in clients:
        tally.add(client)
    assert (tally.total, tally.others) == (len(clients), others)


def test_who_was_the_most_frequent_long_ago_gives_way() -> None:
    tally = ClientTally()
    for _ in range(10_000):
        tally.add("a")
    for _ in range(VOTES_MAX + 1):
        tally.add("b")
    assert tally.most == "b"


def test_what_nobody_has_caused_is_of_others() -> None:
    tally = ClientTally()
    tally.add("a")
    tally.add_of_nobody()
    assert (tally.total, tally.others, tally.most) == (2, 1, "a")
