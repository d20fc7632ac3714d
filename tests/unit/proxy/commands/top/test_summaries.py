"""The lines above and below the table: verdicts, service levels, totals, queues."""

from typing import Any

import pytest

from penstock.proxy.commands.top.figures import count, seconds
from penstock.proxy.commands.top.lines import Line, text_of
from penstock.proxy.commands.top.summaries import (
    first_token_line,
    slo_lines,
    totals_line,
    verdict_lines,
    waiting_line,
    waiting_lines,
)
from tests.browser.figures import BECAUSE, EMPTY, MEMORY, OUT, rate, slo, snapshot, verdict

pytestmark = pytest.mark.once


def texts(lines: list[Line]) -> list[str]:
    return [text_of(line).rstrip() for line in lines]


def test_what_is_wrong_comes_first_with_what_to_do() -> None:
    told = snapshot(verdicts=[verdict(pool="rerank"), OUT])
    first, *_, to_do, fine = texts(verdict_lines(told, 100, 12))
    assert first.startswith("! embed, since ")
    assert ": Failing: gpu-6 is out (unreachable): nothing listens" in first
    assert to_do == "  To do: Look at the log of gpu-6, and restart it."
    assert fine == "  rerank: nothing is wrong there."


def test_a_pool_without_trouble_is_one_line() -> None:
    (line,) = texts(verdict_lines(snapshot(verdicts=[verdict()]), 80, 5))
    assert line.startswith("chat: nothing is wrong.  Since ")
    (line,) = texts(verdict_lines(EMPTY, 80, 5))
    assert line == "No verdict yet: the first looks take a second or two."


def test_each_pool_in_trouble_has_a_line_however_few_there_are() -> None:
    lines = texts(verdict_lines(snapshot(verdicts=[MEMORY, OUT, verdict()]), 80, 5))
    assert len(lines) == 5
    assert [line[:2] for line in lines] == ["! ", "  ", "  ", "! ", "  "]
    assert (lines[0][:7], lines[3][:8], lines[4][:8]) == ("! chat,", "! embed,", "  chat: ")
    assert lines[3].endswith(" ..")  # there is more: what to do
    many = [verdict("failing", f"pool-{number}") for number in range(9)]
    assert texts(verdict_lines(snapshot(verdicts=many), 80, 5))[-1] == (
        "  and 5 more: penstock status names all."
    )


def test_the_proxys_own_trouble_is_told() -> None:
    told = snapshot(verdicts=[verdict()])
    told["proxy"] |= {"state": "draining", "reload_failed": ["a", "b"]}
    lines = texts(verdict_lines(told, 200, 12))
    assert lines[0].startswith("! This proxy is draining")
    assert lines[1].startswith("! The last reload failed: 2 problems")


def test_service_levels_are_told_with_their_burn_the_worst_first() -> None:
    lines = texts(slo_lines(snapshot()["slos"], 200, 5))
    assert lines == [
        f"SLO  embed availability: critical, {BECAUSE}, -40% left",
        f"SLO  chat batch error rate: warning, {BECAUSE}, 31% left",
        "SLO  chat interactive ttft p95 <= 0.50s: ok, 0.42s, 92% left, burn 0.2x 5m, 1.1x 3d",
    ]
    (line,) = texts(slo_lines(snapshot()["slos"], 80, 1))
    assert line.startswith("SLO  embed availability: critical")
    assert line.endswith("  +2, 1 not ok")
    assert len(line) <= 80
    small = [slo("a", "ok", 0.01, 0.9, None, None), slo("b", "warning", 0.2, 0.9, None, None)]
    assert texts(slo_lines(small, 80, 5))[0].startswith("SLO  all b: warning")
    assert texts(slo_lines([], 80, 1)) == ["SLO  None is configured (slo:)."]


def test_the_totals_add_up_all_pools() -> None:
    told = snapshot(3, rates={"a": rate(1.0, 0.0), "b": rate(0.5, 0.0)})
    line = text_of(totals_line(told, 200))
    assert line == (
        "4,680 tokens/s  27.6k prompt  19 req/s  run 3  wait 3  failed 0/s  cost 28.00/h"
        "  0.0021/1k tokens  refused 0.6/s  in line 0"
    )
    assert text_of(totals_line(told, 80)) == line.partition("  0.0021")[0]
    assert text_of(totals_line(told, 60)) == line.partition("  failed")[0]  # whole parts only


def test_nothing_known_is_a_dash() -> None:
    assert text_of(totals_line(EMPTY, 80)).startswith("- tokens/s  - prompt  - req/s  run -")
    assert text_of(first_token_line({}, 80)) == "TTFT  No stream has ended in the last minute."


def test_first_tokens_are_those_of_the_slowest_pool() -> None:
    rates = {"a": rate(0.1, 0.0), "b": rate(1.0, 0.0, parts={"queue": 0.21, "engine": 0.3})}
    assert text_of(first_token_line(rates, 200)) == (
        "TTFT b  50% 0.31s  95% 1.42s  mean 0.50s:  queue 0.21s  engine 0.30s"
    )


def test_queues_are_told_by_class_and_by_tenant() -> None:
    queue = snapshot()["queue"]
    assert text_of(waiting_line(queue, 120)) == (
        "WAITING  interactive 3 (4,100 tokens)  standard 41 (182k tokens)"
        "  research 30  partner 9  without a key 5"
    )
    needs = "next: {}. The KV cache of gpu-3 has no room for\n  its prompt and the expected answer."
    assert (
        "\n".join(texts(waiting_lines(queue, 54, 20)))
        == f"""\
WAITING IN PENSTOCK
interactive    3 requests, 4,100 tokens, pressure 30%
  {needs.format("1.20s")}
standard       41 requests, 182k tokens, pressure 72%
  {needs.format("4.20s")}
batch          0, pressure 110%
by tenant
research            30
partner              9
without a key        5"""
    )
    off: dict[str, Any] = EMPTY["queue"]
    assert text_of(waiting_line(off, 80)) == (
        "WAITING  Nothing waits here: admission is off (admission.enabled)."
    )


def test_figures_are_short() -> None:
    figures = map(count, (None, 0, 0.4, 950, 9_999, 12_345, 123_456, 4.1e6))
    assert " ".join(figures) == "- 0 0.4 950 9,999 12.3k 123k 4.1M"
    times = map(seconds, (None, 0.042, 0.31, 14.2, 186))
    assert " ".join(times) == "- 42ms 0.31s 14.2s 3.1min"
