"""The lines above and below the table: verdicts, service levels, totals, queues."""

import pytest

from penstock.proxy.commands.top.lines import Line, count, seconds, text_of
from penstock.proxy.commands.top.summaries import (
    first_token_line,
    slo_lines,
    verdict_lines,
)
from tests.browser.figures import EMPTY, OUT, rate, slo, snapshot, verdict

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


def test_pools_that_have_no_line_are_counted() -> None:
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


def test_the_worst_service_level_comes_first() -> None:
    small = [slo("a", "ok", 0.01, 0.9, None, None), slo("b", "warning", 0.2, 0.9, None, None)]
    assert texts(slo_lines(small, 80, 5))[0].startswith("SLO  all b: warning")


def test_first_tokens_are_those_of_the_slowest_pool() -> None:
    rates = {"a": rate(0.1, 0.0), "b": rate(1.0, 0.0, parts={"queue": 0.21, "engine": 0.3})}
    assert text_of(first_token_line(rates, 200)) == (
        "TTFT b  50% 0.31s  95% 1.42s  mean 0.50s:  queue 0.21s  engine 0.30s"
    )


def test_figures_are_short() -> None:
    figures = map(count, (None, 0, 0.4, 950, 9_999, 12_345, 123_456, 4.1e6))
    assert " ".join(figures) == "- 0 0.4 950 9,999 12.3k 123k 4.1M"
    times = map(seconds, (None, 0.042, 0.31, 14.2, 186))
    assert " ".join(times) == "- 42ms 0.31s 14.2s 3.1min"
