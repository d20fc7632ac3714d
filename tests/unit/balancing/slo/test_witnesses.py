"""Whose wait in vain counts, as a transcript."""

from penstock.balancing.slo.abandoned import ALONE_S, Witnesses

WAITED_S = 3.0


def told(*events: str) -> str:
    """Each event is a client and what becomes of it a second later: `+` it is served, `-` it leaves
    after 3 s in vain. For each wait in vain: does it count?"""
    witnesses, found = Witnesses(), ""
    for now_s, event in enumerate(events, 1):
        if event[1] == "+":
            witnesses.served("p", float(now_s))
        else:
            counts = witnesses.in_vain("p", event[0], now_s - WAITED_S, float(now_s))
            found += "y" if counts else "n"
    return found


def test_one_client_counts_only_with_a_second_one_since_the_last_answer() -> None:
    assert told("a+", "b-", "b-", "b-") == "nnn"
    assert told("b-", "c-", "b-", "b-") == "nyyy"
    assert told("b-", "c-", "a+", "b-", "b-") == "nynn"


def test_it_is_believed_when_no_answer_begins_for_long() -> None:
    leaves = ["b-"] * int(ALONE_S)
    assert told("a+", *leaves) == "n" * int(ALONE_S - WAITED_S) + "yyy"
    assert "y" not in told("a+", *leaves[:20], "a+", *leaves[:20])


def test_an_answer_that_began_before_and_ends_late_says_nothing() -> None:
    witnesses = Witnesses()
    assert not witnesses.in_vain("p", "b", 12.0, 20.0)
    witnesses.served("p", 11.0)  # read slowly, and at its end only now
    assert witnesses.in_vain("p", "b", 39.0, 42.0)


def test_pools_that_are_gone_are_forgotten() -> None:
    witnesses = Witnesses()
    witnesses.in_vain("p", "b", 1.0, 2.0)
    witnesses.keep({"q"})
    assert not witnesses.in_vain("p", "c", 1.0, 2.0)
