"""What `penstock status` says of the proxy itself."""

import time
from typing import Any

import pytest

from penstock.proxy.commands.status import proxy_lines, told_of

SINCE: float = time.mktime((2026, 11, 25, 23, 2, 1, 0, 0, -1))
PROXY: dict[str, Any] = {
    "version": "0.1.0",
    "build": "compiled",
    "state": "ready",
    "since": SINCE,
    "up_s": 11_000.0,
    "open_requests": 1_041,
    "lag_ms": 3.4,
    "refused_lately": {},
    "last_reload": None,
    "reload_failed": [],
    "needs_restart": [],
    "waiting": {"interactive": 2, "batch": 10},
}


def test_the_state_is_one_line() -> None:
    assert proxy_lines(PROXY)[0] == (
        "Proxy ready, up 3 h since 11-25 23:02, 0.1.0 compiled, 1,041 open, 12 queued, lag 3 ms"
    )
    assert len(proxy_lines(PROXY | {"waiting": {}})) == 1


def test_what_an_older_proxy_does_not_tell_is_not_told_as_zero() -> None:
    told = {"version": "0.0.9", "state": "ready", "reload_failed": [], "waiting": {"standard": 0}}
    assert proxy_lines(told) == ["Proxy ready, up -, 0.0.9, - open, 0 queued, lag -"]


@pytest.mark.parametrize("problems", [[], ["a.yaml:1: x: unknown key", "a.yaml:2: y: is required"]])
def test_the_last_reload_is_told_with_its_time_and_why_it_failed(problems: list[str]) -> None:
    last = {"at": SINCE, "age_s": 250.0, "succeeded": not problems}
    proxy = PROXY | {"waiting": {}, "last_reload": last, "reload_failed": problems}
    when = "4 min ago, 11-25 23:02"
    failed = f"The last reload failed {when}; the previous configuration is still in use:"
    expected = [failed, *(f"  {each}" for each in problems)]
    assert proxy_lines(proxy)[1:] == (
        expected if problems else [f"The last reload succeeded {when}."]
    )


def test_what_was_refused_is_told_with_the_most_frequent_reasons() -> None:
    refused = {"wait": 1_200, "deadline": 30, "lag": 5, "memory": 4, "budget": 2, "unread": 1}
    assert proxy_lines(PROXY | {"waiting": {}, "refused_lately": refused})[1:] == [
        "Refused in the last minutes: 1,242 (wait 1,200, deadline 30, lag 5, memory 4, others 3)."
    ]


def test_what_waits_is_told_by_class_while_something_waits() -> None:
    proxy = {"state": "ready", "reload_failed": [], "waiting": {"interactive": 0, "batch": 0}}
    assert told_of(proxy) == []
    proxy["waiting"] = {"interactive": 2, "standard": 0, "batch": 1_000}
    told = "Requests that wait for room at a backend: interactive 2, batch 1,000."
    assert told_of(proxy) == [told]
