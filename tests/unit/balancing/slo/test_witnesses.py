"""Who counts as having waited in vain, as a transcript."""

from penstock.balancing.slo.witnesses import THERE_S, Witnesses


def told(*events: str) -> str:
    """Each event is a client and what became of it: `+` it was served, `-` it waited in vain, `.`
    the others' time is over. A letter for each wait in vain: does it count?"""
    witnesses, now_s, found = Witnesses(), 0.0, ""
    for event in events:
        client, what = event[0], event[1]
        now_s += THERE_S + 1.0 if what == "." else 1.0
        if what == "+":
            witnesses.served("p", client, now_s)
        elif what == "-":
            found += "y" if witnesses.in_vain("p", client, now_s) else "n"
    return found


def test_a_client_alone_counts() -> None:
    assert told("a-", "a-") == "yy"
    assert told("a+", "a-") == "y"


def test_one_of_several_counts_only_with_a_second_one() -> None:
    assert told("a+", "b-", "b-", "b-") == "nnn"
    assert told("a+", "b-", "c-", "b-") == "nyy"
    assert told("a+", "b+", "a-", "b-", "a-") == "nyy"


def test_who_was_there_long_ago_is_no_other() -> None:
    assert told("a+", "x.", "b-") == "y"
    assert told("a+", "b-", "x.", "a+", "c-") == "nn"


def test_pools_that_are_gone_are_forgotten() -> None:
    witnesses = Witnesses()
    witnesses.served("p", "a", 1.0)
    witnesses.keep({"q"})
    assert witnesses.in_vain("p", "b", 2.0)
