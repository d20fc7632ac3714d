"""What requests of a tenant with a budget are charged, however they end, and what it is told."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from penstock.conf.tenants import TenantLimitSettings
from penstock.proxy.data.budgets import duration
from penstock.proxy.data.calibration import UNSEEN_TOKENS_MAX
from tests.unit.proxy.data.playbook import (
    DONE,
    END,
    STREAM,
    Client,
    Play,
    chat,
    chunk,
    get,
    plain,
    post,
    token,
)

KEY = b"authorization: Bearer key-of-t\r\n"
LIMITS = {"requests_per_day": 1_000, "tokens_per_day": 1_000_000}
USAGE = chunk(
    b'data: {"choices":[],"usage":{"prompt_tokens":100,"completion_tokens":7,'
    b'"prompt_tokens_details":{"cached_tokens":60}}}\n\n'
)
MESSAGE = (
    b'{"type":"message","content":[{"type":"text","text":"a"}],"stop_reason":"end_turn",'
    b'"usage":{"input_tokens":5,"output_tokens":1}}'
)


def playing(limits: dict[str, Any] = LIMITS, **settings: Any) -> Play:
    tenants = [
        {"name": "t", "keys": [{"key": "key-of-t"}], "limits": limits},
        {"name": "other", "keys": [{"key": "key-of-other"}]},
    ]
    return Play(tenants=tenants, **settings)


@pytest.fixture
def play() -> Iterator[Play]:
    play = playing()
    yield play
    play.close()
    assert not play.plane.budgets.tenants["t"].budget.running


def used(play: Play) -> tuple[int, int]:
    """Requests and tokens of today. Little comes back in the time of a play."""
    budget, now_s = play.plane.budgets.tenants["t"].budget, play.loop.now_s
    requests, tokens = budget.requests["requests_per_day"], budget.tokens["tokens_per_day"]
    taken = round((1_000_000 - tokens.level(now_s)) / 10) * 10
    return round(1_000 - requests.level(now_s)), taken


def headers(client: Client) -> dict[str, str]:
    head = client.written.rpartition(b"HTTP/1.1 ")[2].partition(b"\r\n\r\n")[0].decode()
    return dict(re.findall(r"^([\w-]+): (.*?)\r?$", head, re.MULTILINE))


FURTHER = ["POST /v1/systemone", "GET /info"]


def further(body: bytes = b"", line: bytes = b"POST /v1/systemone") -> bytes:
    return post("/x", body, KEY).replace(b"POST /x", line, 1)


def test_requests_to_added_paths_are_counted_and_no_tokens() -> None:
    play = playing({"requests_per_day": 2, "tokens_per_day": 1_000_000}, paths=FURTHER)
    play.client.sends(further(b"x" * 5_000))
    play["b1"].sends(plain("200 OK", b'{"a":1}'))
    play.client.sends(further(b"", b"GET /info"))
    play["b2"].sends(plain("404 Not Found", b'{"a":1}'))
    budget = play.plane.budgets.tenants["t"].budget
    assert round(budget.requests["requests_per_day"].level(play.loop.now_s)) == 0
    assert round(budget.tokens["tokens_per_day"].level(play.loop.now_s)) == 1_000_000
    play.client.sends(further(b"{}"))
    assert b"HTTP/1.1 429" in play.client.written


def test_one_to_an_added_path_that_nobody_served_costs_nothing() -> None:
    play = playing({"requests_per_day": 2}, paths=FURTHER)
    play.ejects("b1", "b2")
    play.client.sends(further(b"{}"))
    play.passes(100.0)
    assert b"HTTP/1.1 503" in play.client.written
    budget = play.plane.budgets.tenants["t"].budget
    assert round(budget.requests["requests_per_day"].level(play.loop.now_s)) == 2


def test_those_at_added_paths_are_so_many_at_once() -> None:
    play = playing({"concurrent": 1}, paths=FURTHER)
    play.client.sends(further(b"{}"))
    other = play.connects()
    other.sends(further(b"{}"))
    assert b"HTTP/1.1 429" in other.written
    other.closes()
    play["b1"].sends(plain("200 OK", b"{}"))
    assert not play.plane.budgets.tenants["t"].budget.running
    play.client.sends(further(b"{}"))
    assert b"HTTP/1.1 429" not in play.client.written


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"model":"mine"}', 200),
        (b' { "state": [1], "mod\\u0065l" : "mine" }', 200),
        (b'{"model":"other"}', 404),
        (b'{"model":"other","model":"mine"}', 404),
        (b'{"model":["mine"]}', 404),
        (b"{}", 404),
        (b"model=mine", 404),
        (b"", 404),
    ],
)
def test_an_added_path_is_open_for_the_models_of_a_tenant_only(body: bytes, status: int) -> None:
    play = playing({"models": ["mine"]}, paths=FURTHER)
    play.client.sends(further(body))
    if status == 200:
        play["b1"].sends(plain("200 OK", b"{}"))
    assert b"HTTP/1.1 %d" % status in play.client.written


def test_a_whole_answer_costs_what_its_backend_counted_less_what_was_cached(play: Play) -> None:
    play.client.sends(LONG)
    assert used(play)[1] > 1_000  # before anything is known
    play["b1"].sends(STREAM, token("a"), USAGE, DONE, END)
    assert used(play) == (1, 50)  # 100 - 60 + 7


LONG = chat(head=KEY, content="all work " * 1_000)


def costs_its_prompt(play: Play) -> bool:
    requests, tokens = used(play)
    return requests == 1 and 1_500 < tokens < 2_500


@pytest.mark.parametrize("end", ["whole", "left", "left while it is held", "broken"])
def test_without_counts_of_the_backend_ours_are_charged(end: str) -> None:
    play = playing(timeouts={"hold_s": 1})
    play.client.sends(LONG)
    if end == "left while it is held":
        play.passes(1.5)
    elif end != "left":
        play.streams("b1", "a")
    if end == "whole":
        play.ends("b1", "b")
    elif end == "broken":
        play["b1"].resets()
    else:
        play.client.closes()
    assert costs_its_prompt(play)


@pytest.mark.parametrize("held", [True, False])
def test_what_no_backend_served_costs_nothing(held: bool) -> None:
    """Also if its client has the 200 and comments already."""
    play = playing(timeouts={"hold_s": 1})
    play.client.sends(LONG)
    play.passes(1.5 * held)
    assert (b": ping" in play.client.written) is held
    for name in ("b1", "b2"):
        play[name].resets()
    assert b'"error"' in play.client.written
    assert used(play) == (0, 0)
    assert held or play.happened()[-1].startswith("counted 5")


def test_what_two_backends_tried_costs_once(play: Play) -> None:
    play.client.sends(LONG)
    play["b1"].resets()
    assert used(play)[0] == 1
    play["b2"].sends(STREAM, token("a"), USAGE, DONE, END)
    assert used(play) == (1, 50)


@pytest.mark.parametrize(
    ("status", "costs", "held"), [("400 No", 1, True), ("408 No", 0, True), ("400 No", 1, False)]
)
def test_what_the_backend_refuses_costs_a_request_and_no_tokens(
    status: str, costs: int, held: bool
) -> None:
    """Also after a held stream has its 200."""
    play = playing(timeouts={"hold_s": 1})
    play.client.sends(LONG)
    play.passes(1.5 * held)
    play["b1"].sends(plain(status))
    assert used(play) == (costs, 0)


def test_who_allows_too_little_time_pays_for_the_prompt_and_what_the_engine_had_time_for(
    play: Play,
) -> None:
    head = KEY + b"x-request-timeout: 3\r\n"
    play.client.sends(
        chat('"max_tokens":4000', head=head, content="all work " * 1_000, stream=False)
    )
    play.passes(3.2)
    assert "client got 408, request_timeout" in play.happened()
    requests, tokens = used(play)
    assert requests == 1
    assert tokens > 2_050  # the prompt, and 160 in three seconds; 37 have come back


def test_who_leaves_a_plain_answer_pays_for_what_the_engine_had_time_for(play: Play) -> None:
    play.client.sends(chat('"max_tokens":60', head=KEY, stream=False))
    play.passes(3.0)
    play.client.closes()
    requests, tokens = used(play)
    assert requests == 1
    assert 30 <= tokens <= 80  # no more than it may have; and 35 have come back


def test_a_stored_response_that_is_read_again_costs_nothing(play: Play) -> None:
    play.client.sends(get("/v1/responses/resp_1", KEY))
    body = b'{"id":"resp_1","usage":{"input_tokens":100,"output_tokens":900,"total_tokens":1000}}'
    play["b1"].sends(plain("200 OK", body))
    assert play.client.written.startswith(b"HTTP/1.1 200")
    assert used(play) == (0, 0)


def test_who_is_over_budget_can_still_cancel_a_response() -> None:
    play = playing({"concurrent": 1})
    play.client.sends(chat(head=KEY))
    play.happened()
    play.connects().sends(post("/v1/responses/resp_1/cancel", b"", KEY))
    assert any(line.endswith("got POST") for line in play.happened())


def test_an_absurd_count_charges_no_more_than_what_can_be_true(play: Play) -> None:
    play.client.sends(chat('"max_tokens":5', head=KEY))
    _, _, event = USAGE.replace(b":7,", b":900000,").partition(b"\r\n")
    play["b1"].sends(STREAM, token("a"), chunk(event.removesuffix(b"\r\n")), DONE, END)
    assert used(play)[1] <= UNSEEN_TOKENS_MAX + 50


def test_limits_that_are_taken_away_and_given_back_forget_nothing_that_runs() -> None:
    play = playing({"concurrent": 2})
    budgets, settings = play.plane.budgets, play.plane.settings
    for _ in range(2):
        play.connects().sends(chat(head=KEY))
    bare = TenantLimitSettings()
    without = [each.model_copy(update={"limits": bare}) for each in settings.tenants]
    budgets.follow(settings.model_copy(update={"tenants": tuple(without)}), play.loop.now_s)
    budgets.follow(settings, play.loop.now_s)
    assert len(budgets.tenants["t"].budget.running) == 2
    play.happened()
    play.client.sends(chat(head=KEY))
    assert play.happened()[0] == "client got 429, rate_limited"
    for client in list(play.plane.clients):
        client.break_off()


def test_what_waits_for_another_backend_is_no_answer(play: Play) -> None:
    """Its backend has failed, and its client leaves while nobody works on it."""
    play.client.sends(chat('"max_tokens":4000', head=KEY, stream=False))
    play.passes(3.0)
    for name in ("b1", "b2"):
        with suppress(KeyError):
            play[name].resets()
    assert used(play)[1] <= 10


def test_who_is_refused_by_admission_pays_nothing() -> None:
    play = playing(admission={"classes": [{"name": "standard", "max_wait_s": 0.01}]})
    others = [play.connects() for _ in range(4)]
    for each in others[:2]:
        each.sends(chat(head=b"x-api-key: key-of-other\r\n", content="all work " * 2_000))
    others[2].sends(chat(head=b"x-api-key: key-of-other\r\n", content="all work " * 2_000))
    play.client.sends(chat(head=KEY, content="all work " * 2_000))
    assert "client got 429, overloaded" in play.happened()
    assert used(play) == (0, 0)


def test_the_larger_of_two_limits_is_charged_beforehand(play: Play) -> None:
    play.client.sends(chat('"max_tokens":1', '"max_completion_tokens":10000', head=KEY))
    assert used(play)[1] > 200  # the expected answer, and not one token
    play.answers("b1")


def test_every_answer_tells_what_is_left(play: Play) -> None:
    play.client.sends(chat(head=KEY))
    play["b1"].sends(STREAM, token("a"), USAGE, DONE, END)
    told = headers(play.client)
    assert told["x-ratelimit-limit-requests"] == "1000"
    assert told["x-ratelimit-remaining-requests"] == "999"
    assert told["x-ratelimit-reset-requests"] == "1m26s"
    assert told["x-ratelimit-limit-tokens"] == "1000000"
    assert int(told["x-ratelimit-remaining-tokens"]) < 1_000_000


def test_a_tenant_without_a_budget_is_told_nothing(play: Play) -> None:
    play.client.sends(chat(head=b"x-api-key: key-of-other\r\n"))
    play.answers("b1")
    assert not any("ratelimit" in name for name in headers(play.client))
    assert used(play) == (0, 0)


def test_anthropics_sdk_is_told_in_its_own_words() -> None:
    play = playing({"requests_per_minute": 1})
    body = b'{"max_tokens":5,"messages":[{"role":"user","content":"x"}]}'
    for _ in range(2):
        play.client.sends(post("/v1/messages", body, KEY))
        if "b1 got POST" in play.happened():
            play["b1"].sends(plain("200 OK", MESSAGE))
            told = headers(play.client)
            assert told["anthropic-ratelimit-requests-remaining"] == "0"
            assert re.fullmatch(
                r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", told["anthropic-ratelimit-requests-reset"]
            )
    assert b'"type":"rate_limit_error"' in play.client.written


def refused(limits: dict[str, Any]) -> Client:
    """The second request, when the first one runs."""
    play = playing(limits)
    play.client.sends(LONG)
    second = play.connects()
    second.sends(chat(head=KEY))
    assert "client got 429, rate_limited" in play.happened()
    for client in (second, play.client):
        client.closes()
    play.close()
    return second


@pytest.mark.parametrize(
    ("limits", "wait_s", "text"),
    [
        ({"requests_per_minute": 2, "concurrent": 1}, 1, "concurrent is 1; retry in 1 s"),
        ({"requests_per_minute": 1}, 60, "requests_per_minute is 1; retry in 60 s"),
        ({"tokens_per_day": 1_500}, None, "tokens_per_day is 1500; retry in"),
    ],
)
def test_a_refusal_says_which_budget_and_how_long(
    limits: dict[str, Any], wait_s: int | None, text: str
) -> None:
    client = refused(limits)
    assert text.encode() in client.written
    told = headers(client)
    kind = next(iter(limits)).partition("_")[0]
    assert int(told[f"x-ratelimit-limit-{kind}"]) == next(iter(limits.values()))
    assert wait_s is None or told["retry-after"] == str(wait_s)
    assert 0 < int(told["retry-after-ms"]) <= 1_000 * int(told["retry-after"])
    far = int(told["retry-after"]) > 59
    assert (told.get("x-should-retry") == "false") is far


@pytest.mark.parametrize(
    ("limits", "members", "status", "text"),
    [
        ({"models": ["small"]}, ['"model":"small"'], 200, b""),
        ({"max_tokens": 10}, ['"max_tokens":10'], 200, b""),
        ({"prompt_tokens": 3_000}, [], 200, b""),
        ({"models": ["small"]}, ['"model":"large"'], 404, b"model_not_found"),
        ({"models": ["small"]}, [], 404, b"model_not_found"),
        ({"max_tokens": 10}, ['"max_tokens":"11"'], 400, b"a whole number"),
        ({"max_tokens": 10}, ['"max_tokens":11'], 400, b"at most 10"),
        ({"max_tokens": 10}, ['"max_tokens":6', '"n":2'], 400, b"at most 10"),
        ({"max_tokens": 10}, [], 400, b"Set max_tokens"),
        ({"prompt_tokens": 1_000}, [], 400, b"prompts of 1000 tokens at most"),
    ],
)
def test_what_a_request_may_ask_for(
    limits: dict[str, Any], members: list[str], status: int, text: bytes
) -> None:
    play = playing(limits)
    play.client.sends(chat(*members, head=KEY, content="all work " * 1_000))
    happened = play.happened()
    assert "b1 got POST" in happened if status == 200 else happened[0][11:14] == str(status)
    assert text in play.client.written


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0ms"), (0.012, "12ms"), (1.2, "1s"), (360.0, "6m0s"), (3_723.0, "1h2m3s")],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text
