"""Why requests wait, in words, and that pages and commands know each reason."""

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.balancing.admission.queued_request import WaitReason
from penstock.proxy.commands.time_spent import WORDS, heads_of, prospect, reason

PAGE = Path(__file__).parents[4] / "docs" / "admission.md"


def test_each_reason_has_words_and_stands_in_the_page() -> None:
    assert list(WORDS) == [each.value for each in WaitReason]
    section = PAGE.read_text().partition("### For what a request waits")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(WORDS)


def test_a_reason_of_another_version_is_told_as_it_is() -> None:
    assert reason({"waits_for": "kv_cache", "backend": "b0"}).startswith("The KV cache of b0 has")
    assert reason({"waits_for": "news", "backend": "b0"}) == "news."


HEAD = {
    "waited_s": 2.41,
    "predicted_s": 4.0,
    "deadline_s": 30.0,
    "waits_for": "prompts",
    "backend": "b0",
}


def test_the_next_one_of_each_class_is_told() -> None:
    classes = [
        {"name": "interactive", "next": None},
        {"name": "standard", "next": HEAD | {"tenant": "research"}},
        {"name": "batch", "next": HEAD | {"tenant": None, "waits_for": "class"}},
    ]
    assert heads_of({"classes": classes}) == [
        "  standard: the next one of research has waited 2.4 s (predicted 4.0 s, deadline 30 s)."
        " b0 still has other prompts to prefill.",
        "  batch: the next one has waited 2.4 s (predicted 4.0 s, deadline 30 s)."
        " A request of a higher class goes first.",
    ]


WAITS: dict[str, Any] = {
    "class": "standard",
    "outcome": "wait",
    "backend": "b0",
    "waits_for": "kv_cache",
    "ahead": [
        {"class": "interactive", "requests": 1, "tokens": 1_840, "tenants": 1},
        {"class": "standard", "requests": 1_100, "tokens": 36_200, "tenants": 3},
    ],
    "predicted_s": 3.14,
    "allowed_s": 18.0,
    "deadline_s": 30.0,
}


def test_a_wait_is_told_with_all_that_goes_before() -> None:
    assert prospect(WAITS) == [
        "In the class standard it would wait: first token in about 3.1 s, deadline 30 s.",
        "  The KV cache of b0 has no room for its prompt and the expected answer.",
        "  Before it: 1 request of the class interactive, 1,840 tokens, of 1 tenant.",
        "  Before it: 1,100 requests of the class standard, 36,200 tokens, of 3 tenants.",
    ]


def test_nobody_knows_when_a_backend_takes_requests_again_that_refuses_for_load() -> None:
    assert prospect(WAITS | {"waits_for": "busy", "ahead": [], "allowed_s": 30.0}) == [
        "In the class standard it would wait, for 30 s at most.",
        "  b0 refuses requests for load (429 or 503).",
    ]


@pytest.mark.parametrize("hint", [{"retry-after": "4"}, {}])
def test_a_refusal_is_told_with_its_code_and_hint(hint: dict[str, str]) -> None:
    error = {"status": 429, "code": "overloaded", "message": "All are busy.", "headers": hint}
    told = prospect(WAITS | {"outcome": "refuse", "error": error})
    after = ", Retry-After 4" if hint else ""
    assert told[0] == f"In the class standard it would be refused: 429 overloaded{after}."
    assert told[1] == "  All are busy."
    assert len(told) == 5
    assert len(prospect({"class": "standard", "outcome": "refuse", "error": error})) == 2
