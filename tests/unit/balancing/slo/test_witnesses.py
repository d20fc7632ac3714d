"""Whose wait in vain counts, as a transcript."""

from penstock.balancing.slo.abandoned import ALONE_S, THERE_S, Witnesses

WAITED_S = 3.0


def told(*events: str) -> str:
    """Each event is a client and what becomes of it a second later: `+` it is served, `-` it leaves
    after 3 s in vain. `..`: five minutes pass. For each wait in vain: does it count?"""
    witnesses, now_s, found = Witnesses(), 0.0, ""
    for event in events:
        now_s += THERE_S + 1.0 if event == ".." else 1.0
        if event[1] == "+":
            witnesses.served("p", event[0], now_s)
        elif event[1] == "-":
            counts = witnesses.in_vain("p", event[0], now_s - WAITED_S, now_s)
            found += "y" if counts else "n"
    return found


def test_a_client_alone_counts() -> None:
    assert told("a-", "a-") == "yy"
    assert told("a+", "a-") == "y"
    assert told("a+", "..", "b-") == "y"


def test_one_of_several_counts_only_with_a_second_one_at_the_same_time() -> None:
    assert told("a+", "b-", "b-", "b-") == "nnn"
    assert told("a+", "b-", "c-", "b-", "b-", "b-", "b-") == "nyyyyn"
    assert told("a+", "b+", "a-", "b-", "a-") == "nyy"


def test_it_is_believed_when_no_answer_begins_for_long() -> None:
    leaves = ["b-"] * int(ALONE_S)
    assert told("a+", *leaves) == "n" * int(ALONE_S - WAITED_S) + "yyy"
    assert "y" not in told("a+", *leaves[:20], "a+", *leaves[:20])


def test_an_answer_that_began_before_and_ends_late_says_nothing() -> None:
    witnesses = Witnesses()
    witnesses.served("p", "a", 10.0)
    assert not witnesses.in_vain("p", "b", 12.0, 20.0)
    witnesses.served("p", "a", 11.0)  # read slowly, and at its end only now
    assert witnesses.in_vain("p", "b", 39.0, 42.0)


def test_pools_that_are_gone_are_forgotten() -> None:
    witnesses = Witnesses()
    witnesses.served("p", "a", 1.0)
    witnesses.keep({"q"})
    assert witnesses.in_vain("p", "b", 1.0, 2.0)
