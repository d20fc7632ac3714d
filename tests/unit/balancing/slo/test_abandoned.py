"""Whose wait in vain counts, as a transcript."""

from math import inf

from penstock.balancing.slo.sample import ALONE_S, Abandoned

WAITED_S = 3.0


def told(*events: str) -> str:
    """Each event is a client and what becomes of it a second later: `+` its answer begins, `-` it
    leaves after 3 s in vain. For each wait in vain: does it count?"""
    abandoned, answered_s, found = Abandoned(), -inf, ""
    for now_s, event in enumerate(events, 1):
        if event[1] == "+":
            answered_s = now_s
        else:
            since_s = now_s - WAITED_S
            found += "y" if abandoned.counts("p", event[0], since_s, now_s, answered_s) else "n"
    return found


def test_one_client_counts_only_with_a_second_one_since_the_last_answer() -> None:
    assert told("a+", *["b-"] * 9) == "n" * 9
    assert told("b-", "c-", "b-", "b-") == "nyyy"
    assert told("b-", "c-", "a+", *["a-"] * 4, "b-") == "ny" + "nnnny"


def test_it_is_believed_when_no_answer_begins_for_long() -> None:
    leaves = ["b-"] * int(ALONE_S)
    assert told(*leaves) == "n" * int(ALONE_S - WAITED_S) + "yyy"
    assert "y" not in told("a+", *leaves[:20], "a+", *leaves[:20])


def test_an_answer_that_began_before_says_nothing() -> None:
    abandoned = Abandoned()
    assert not abandoned.counts("p", "b", 12.0, 20.0, 11.0)
    assert abandoned.counts("p", "b", 39.0, 42.0, 11.0)


def test_pools_that_are_gone_are_forgotten() -> None:
    abandoned = Abandoned()
    abandoned.counts("p", "b", 1.0, 2.0, 0.0)
    abandoned.keep({"q"})
    assert not abandoned.counts("p", "c", 1.0, 2.0, 0.0)
