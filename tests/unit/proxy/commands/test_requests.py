"""`penstock requests` and `penstock trace`: what a person reads of an entry of the admin port."""

import re
from pathlib import Path
from typing import Any

import pytest

from penstock.balancing.admission.queued_request import WaitReason
from penstock.proxy.commands import requests, time_spent
from penstock.proxy.commands.requests import table
from penstock.proxy.commands.time_spent import WORDS, heads_of, prospect, reason
from penstock.proxy.telemetry import waterfall


def entry(*parts: tuple[str, float, str, str], **fields: Any) -> dict[str, Any]:
    total = sum(part[1] for part in parts)
    told = [
        {"part": name, "ms": ms, "backend": backend or None, "why": why or None}
        for name, ms, backend, why in parts
    ]
    usual: dict[str, Any] = {
        "id": "0123456789abcdef0123456789abcdef",
        "trace_id": None,
        "state": "ended",
        "began": "2026-11-26T07:42:08.631Z",
        "ago_s": 12.3,
        "tenant": "research",
        "class": "standard",
        "model": "llama",
        "pool": "chat",
        "backend": "gpu-1",
        "reason": "cost",
        "attempts": 1,
        "stream": True,
        "status": 200,
        "error": None,
        "whole": True,
        "failed": False,
        "duration_ms": total,
        "ttft_ms": None,
        "prompt_tokens": None,
        "cached_tokens": None,
        "completion_tokens": None,
        "failures": [],
        "client_behind_ms": 0.0,
    }
    return usual | {"parts": told} | fields


SLOW = entry(
    ("receive", 10.0, "", ""),
    ("read", 10.0, "", ""),
    ("queue", 2_100.0, "", "kv_cache"),
    ("failed", 500.0, "gpu-0", "reset"),
    ("connect", 1.0, "gpu-1", ""),
    ("prefill", 300.0, "gpu-1", ""),
    ("decode", 900.0, "gpu-1", ""),
    ("client", 79.0, "", ""),
    attempts=2,
    ttft_ms=2_921.0,
    prompt_tokens=8_120,
    cached_tokens=640,
    completion_tokens=64,
    failures=[{"backend": "gpu-0", "reason": "cost", "failure": "reset"}],
)


def test_a_waterfall_fits_eighty_columns_and_says_what_took_the_time() -> None:
    told = requests.text(SLOW)
    assert max(map(len, told.splitlines())) <= 80
    assert "8,120 prompt tokens (640 cached), 64 completion tokens" in told
    assert "3.900 s in all, first token after 2.921 s" in told
    assert told.endswith(
        "For 2.100 s of it (54%) it waited in penstock: the KV cache had no room.\n"
        "The attempt at gpu-0 failed: reset."
    )
    (bar,) = [line for line in told.splitlines() if line.startswith("waits in penstock: kv_cache")]
    assert bar.split()[-3:-1] == ["2.100", "s"]
    assert bar.count("#") == 18


def test_long_names_do_not_break_the_waterfall() -> None:
    told = requests.text(entry(("prefill", 1.0, "g" * 63, "")))
    assert max(map(len, told.split("\n\n")[1].splitlines())) <= 80


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"status": 502, "error": "backend_error"}, "penstock's own error 502 backend_error."),
        ({"status": 499}, "Its client left before the answer began."),
        ({"status": 422}, "The backend answered with the error 422."),
        ({"whole": False}, "Its client did not get the whole answer: it left, or was disconnected"),
        ({"stream": False, "failed": False}, "(100%) gpu-1 computed the answer."),
    ],
)
def test_how_it_ended_is_said_in_a_sentence(fields: dict[str, Any], says: str) -> None:
    told = requests.text(entry(("head", 5.0, "gpu-1", ""), **{"failed": True, **fields}))
    assert says in told
    assert ("gpu-1 computes the answer" in told) == ("stream" in fields)


def test_the_columns_of_the_table_add_up_to_the_total() -> None:
    head, row, *_ = table([SLOW, entry()]).splitlines()
    assert head.split("  ")[0] == "REQUEST"
    cells = [cell.strip() for cell in row.split("  ") if cell.strip()]
    assert cells[:5] == [
        SLOW["id"], "research", "gpu-1 (2 attempts)", "200", "waiting in line (kv_cache)",
    ]  # fmt: skip
    total, *columns = [float(cell.removesuffix(" s")) for cell in cells[7:]]
    assert total == 3.9
    assert columns == [0.089, 0.01, 2.1, 0.5, 1.201]
    assert round(sum(columns), 6) == total


def test_what_was_refused_at_once_took_no_time() -> None:
    refused = entry(backend=None, attempts=0, status=401, error="unauthorized", failed=True)
    assert "401 unauthorized  refused at once" in table([refused])
    head = ("receive", 0.4, "", "")
    soon = refused | {"parts": entry(head)["parts"], "duration_ms": 0.4}
    assert "401 unauthorized  refused at once" in table([soon])
    assert "sent the request" not in requests.text(soon)
    assert "own error 401 unauthorized" in requests.text(refused)


def test_a_client_that_was_behind_for_most_of_the_time_is_told() -> None:
    """The engine made tokens all the while: no part of the time is the client's."""
    behind = entry(("decode", 10_000.0, "gpu-1", ""), client_behind_ms=8_000.0)
    assert "client read slowly" in table([behind])
    assert "For 8.000 s its client was behind" in requests.text(behind)
    seldom = entry(("decode", 10_000.0, "gpu-1", ""), client_behind_ms=4_000.0)
    assert "client read slowly" not in table([seldom])


def test_every_part_and_every_reason_has_words() -> None:
    parts = {
        value
        for name, value in vars(waterfall).items()
        if name.isupper() and isinstance(value, str)
    }
    for words in (time_spent.SPENT, time_spent.MOSTLY, requests._LABELS):
        assert parts | {"answer"} == set(words)
    columns = (
        *time_spent.CLIENT, *time_spent.PENSTOCK, *time_spent.LINE, *time_spent.LOST,
        *time_spent.BACKEND,
    )  # fmt: skip
    assert sorted(columns) == sorted(parts)
    assert set(time_spent.WAITED) == set(time_spent.WORDS) == set(WaitReason)


def test_who_else_used_the_id_is_told_with_the_way_to_them() -> None:
    entries = [entry(ago_s=1.5, same_id=3, began="2026-11-26T07:42:09Z"), entry(same_id=3)]
    (line,) = requests.more(entries)
    assert line.startswith("1 more tenant or client used this id.")
    assert line.endswith("--before 2026-11-26T07:42:08.631Z")
    assert requests.more([*entries, entry(same_id=3)]) == []


PAGE = Path(__file__).parents[4] / "docs" / "admission.md"


def test_each_reason_has_words_and_stands_in_the_page() -> None:
    assert list(WORDS) == [each.value for each in WaitReason]
    section = PAGE.read_text().partition("### For what a request waits")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(WORDS)


def test_a_reason_of_another_version_is_told_as_it_is() -> None:
    assert reason({"waits_for": "kv_cache", "backend": "b0"}).startswith("The KV cache of b0 has")
    assert reason({"waits_for": "news", "backend": "b0"}) == "news."


HEAD: dict[str, Any] = {"waited_s": 2.41, "predicted_s": 4.0, "deadline_s": 30.0}
HEAD |= {"waits_for": "prompts", "backend": "b0"}


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


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {},
            """\
In the class standard it would wait: first token in about 3.1 s, deadline 30 s.
  The KV cache of b0 has no room for its prompt and the expected answer.
  Before it: 1 request of the class interactive, 1,840 tokens, of 1 tenant.
  Before it: 1,100 requests of the class standard, 36,200 tokens, of 3 tenants.""",
        ),
        (  # nobody knows when it takes requests again
            {"waits_for": "busy", "ahead": [], "allowed_s": 30.0},
            "In the class standard it would wait, for 30 s at most.\n"
            "  b0 refuses requests for load (429 or 503).",
        ),
    ],
)
def test_a_wait_is_told_with_all_that_goes_before(fields: dict[str, Any], told: str) -> None:
    assert "\n".join(prospect(WAITS | fields)) == told


@pytest.mark.parametrize("hint", [{"retry-after": "4"}, {}])
def test_a_refusal_is_told_with_its_code_and_hint(hint: dict[str, str]) -> None:
    error = {"status": 429, "code": "overloaded", "message": "All are busy.", "headers": hint}
    told = prospect(WAITS | {"outcome": "refuse", "error": error})
    after = ", Retry-After 4" if hint else ""
    assert told[0] == f"In the class standard it would be refused: 429 overloaded{after}."
    assert told[1] == "  All are busy."
    assert len(told) == 5
    assert len(prospect({"class": "standard", "outcome": "refuse", "error": error})) == 2
