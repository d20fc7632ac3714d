"""What becomes of a request, and for which service levels it counts."""

import pytest

from penstock.balancing.backend import AdminState
from penstock.conf.settings import Settings
from tests.unit.proxy.data.playbook import (
    DONE,
    END,
    STREAM,
    Play,
    chat,
    chunk,
    keyed,
    plain,
    post,
    tenants,
    token,
)

ALL = {
    "ttft_s": {"p95": 0.5},
    "itl_s": {"p95": 0.5},
    "e2e_s": {"p95": 5.0},
    "availability": 0.999,
    "error_rate": 0.001,
    "goodput": 0.9,
}
USAGE = chunk(b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n')
RELAXED = {"first_byte_s": 60.0, "hold_s": 60.0}


@pytest.fixture
def play() -> Play:
    return Play(1, slo=[ALL], timeouts=RELAXED)


def counts(play: Play, at: int = 0) -> str:
    """Good and bad requests of each objective that has some."""
    told = []
    for each in play.plane.slos.evaluated()[at].objectives:
        good, bad = each.windows.good, each.windows.bad
        if good or bad:
            told.append(f"{each.goal.name} {good}:{bad}")
    return ", ".join(told)


def serve(play: Play, head: bytes = b"") -> None:
    play.client.sends(chat(head=head))
    play["b1"].sends(STREAM, *A_TO_C, USAGE, DONE, END)


A_TO_C = [token(each) for each in "abc"]
GOOD = "ttft_p95 1:0, itl_p95 1:0, e2e_p95 1:0, availability 1:0, error_rate 1:0, goodput 1:0"


def bad(*goals: str) -> str:
    """All is good but these."""
    told = GOOD
    for goal in goals:
        told = told.replace(f"{goal} 1:0", f"{goal} 0:1")
    return told


@pytest.mark.parametrize(
    ("sent", "before_s", "answer", "amid_s", "told"),
    [
        (None, 0, [], 0, GOOD),
        (None, 1, [], 0, bad("ttft_p95", "goodput")),
        (None, 0, A_TO_C[:1], 2, bad("itl_p95", "goodput")),  # for two more
        (-1, 9, [], 0, GOOD),  # how slowly a client sends is its own affair
    ],
    ids=["fast", "a slow first token", "slow further tokens", "sent slowly"],
)
def test_a_whole_stream(
    play: Play, sent: int | None, before_s: float, answer: list[bytes], amid_s: float, told: str
) -> None:
    request = chat()
    play.client.sends(request[:sent])
    play.passes(before_s)
    if sent is not None:
        play.client.sends(request[sent:])
    play["b1"].sends(STREAM, *answer)
    play.passes(amid_s)
    play["b1"].sends(*A_TO_C[len(answer) :], USAGE, DONE, END)
    assert counts(play) == told


@pytest.mark.parametrize("breaks", [False, True])
def test_how_slowly_a_client_reads_is_its_own_affair(play: Play, breaks: bool) -> None:
    play.client.sends(chat())
    play.streams("b1", "a")
    play.client.fills()
    play.passes(9)
    play.client.drains()
    if breaks:
        play["b1"].resets()
        assert counts(play) == "ttft_p95 1:0, availability 0:1, error_rate 0:1, goodput 0:1"
    else:
        play["b1"].sends(token("b"), token("c"), USAGE, DONE, END)
        assert counts(play) == "ttft_p95 1:0, availability 1:0, error_rate 1:0, goodput 1:0"


@pytest.mark.parametrize(
    ("after_s", "told"),
    [(0.2, ""), (1.0, "ttft_p95 0:1, goodput 0:1")],
    ids=["before", "after"],
)
def test_a_client_that_leaves(play: Play, after_s: float, told: str) -> None:
    play.client.sends(chat())
    play.passes(after_s)
    play.client.closes()
    assert counts(play) == told


@pytest.fixture
def hung() -> Play:
    """Without targets for times: two backends, of which none answers."""
    slo = [{"availability": 0.9999, "error_rate": 0.0001}]
    return Play(2, slo=slo, timeouts=RELAXED)


def leaves(play: Play, after_s: float, request: bytes) -> None:
    client = play.connects()
    client.sends(request)
    play.passes(after_s)
    client.closes()


def test_when_nobody_is_served_leaving_clients_are_an_outage(hung: Play) -> None:
    """After 30 s, where there is only one client."""
    for _ in range(20):
        leaves(hung, 3.0, chat())
    assert counts(hung) == "availability 0:11, error_rate 0:11"
    assert {each.state.word for each in hung.plane.slos.evaluated()[0].objectives} == {"critical"}


def test_when_nobody_is_served_clients_own_limits_are_an_outage(hung: Play) -> None:
    for _ in range(20):
        client = hung.connects()
        client.sends(chat(head=b"x-request-timeout: 3\r\n"))
        hung.passes(3.5)
        assert b"408" in client.written
        client.closes()
    assert counts(hung) == "availability 0:12, error_rate 0:12"


def test_who_leaves_early_uses_up_no_budget(hung: Play) -> None:
    for _ in range(200):
        leaves(hung, 1.9, chat())
    assert counts(hung) == ""


def test_who_leaves_before_a_long_prompt_can_be_computed_uses_up_no_budget(hung: Play) -> None:
    for _ in range(20):
        leaves(hung, 5.0, chat(content="all work and no play " * 20_000))
        leaves(hung, 5.0, chat('"max_tokens":4000', stream=False))
    assert counts(hung) == ""


def test_who_leaves_while_others_are_served_uses_up_no_budget(hung: Play) -> None:
    """With one backend that hangs the others of its pool serve."""
    for _ in range(20):
        client = hung.connects()
        client.sends(chat())  # to b1
        hung.passes(3.0)
        hung.client.sends(chat())
        hung["b2"].sends(STREAM, token("a"), token("b"), USAGE, DONE, END)
        client.closes()
    assert counts(hung) == "availability 20:0, error_rate 20:0"


def test_one_client_alone_makes_no_outage_where_others_were_served() -> None:
    """In a quiet pool, in which no answer begins for some seconds."""
    slo = [{"availability": 0.9999}]
    play = Play(1, slo=slo, timeouts=RELAXED, tenants=tenants("a", "b"))
    serve(play, head=keyed("a"))
    for _ in range(5):
        leaves(play, 3.0, chat(head=keyed("b")))
    leaves(play, 0.2, chat(head=keyed("a")))  # it has not waited
    leaves(play, 3.0, chat(head=keyed("b")))
    assert counts(play) == "availability 1:0"
    leaves(play, 3.0, chat(head=keyed("a")))
    assert counts(play) == "availability 1:1"


def test_a_backend_that_fails(play: Play) -> None:
    play.client.sends(chat())
    play["b1"].sends(plain("500 No"))
    assert counts(play) == "availability 0:1, error_rate 0:1, goodput 0:1"


def test_a_stream_that_breaks(play: Play) -> None:
    play.client.sends(chat())
    play.streams("b1", "a", "b")
    play["b1"].resets()
    assert counts(play) == (
        "ttft_p95 1:0, itl_p95 1:0, availability 0:1, error_rate 0:1, goodput 0:1"
    )


def test_requests_at_fault_and_what_needs_no_engine_do_not_count(play: Play) -> None:
    play.client.sends(chat())
    play["b1"].sends(plain("400 No"))
    play.client.sends(b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n")
    play.client.sends(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
    play.client.sends(post("/tokenize", b'{"prompt":"x"}'))
    play["b1"].sends(plain("200 OK"))
    assert counts(play) == ""


def test_a_request_counts_for_its_pool_and_class() -> None:
    slo = [{"availability": 0.9}, {"pool": "p", "availability": 0.9}]
    slo += [{"class": name, "availability": 0.9} for name in ("standard", "batch", "interactive")]
    slo += [{"pool": "p", "class": name, "availability": 0.9} for name in ("standard", "batch")]
    play = Play(1, slo=slo)
    serve(play)
    serve(play, b"x-penstock-priority: batch\r\n")
    serve(play, b"x-penstock-priority: interactive\r\n")  # not believed: standard
    told = [counts(play, at).removeprefix("availability ") for at in range(len(slo))]
    assert told == ["3:0", "3:0", "2:0", "1:0", "", "2:0", "1:0"]


@pytest.mark.parametrize(("key", "told"), [("one", "availability 0:1, goodput 0:1"), ("two", "")])
def test_what_is_refused_by_its_head_is_shed_and_strangers_use_up_no_budget(
    key: str, told: str
) -> None:
    play = Play(1, slo=[ALL | {"pool": "p"}], tenants=tenants("one"))
    play.plane.overload.reason = "memory"
    play.client.sends(chat(head=keyed(key)))
    assert counts(play) == told


def test_no_backend_is_bad_for_the_pool_that_it_would_have_had() -> None:
    play = Play(1, slo=[{"pool": "p", "availability": 0.9}])
    for each in play.backends:
        each.admin_state = AdminState.MAINT
    play.client.sends(chat())
    assert counts(play) == "availability 0:1"


def test_without_slos_nothing_is_counted() -> None:
    play = Play(1)
    serve(play)
    assert not play.plane.slos.any
    assert play.plane.slos.evaluated() == ()


def test_a_reload_keeps_what_stays(play: Play) -> None:
    serve(play)
    settings = play.plane.settings
    other = {"pools": settings.model_dump()["pools"], "slo": [ALL | {"availability": 0.9}]}
    other["slo"][0]["ttft_s"] = {"p95": 0.4}
    other["slo"].append({"class": "batch", "availability": 0.9})
    play.plane.slos.follow(Settings.model_validate(other))
    assert counts(play) == "itl_p95 1:0, e2e_p95 1:0, availability 1:0, error_rate 1:0"
    play.plane.slos.follow(Settings.model_validate(other | {"slo": []}))
    assert not play.plane.slos.any
