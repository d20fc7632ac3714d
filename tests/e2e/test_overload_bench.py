"""The clients of `bench overload` over HTTP, and its table in virtual time."""

import pytest

from penstock.bench.cli import main
from penstock.bench.overload.calls import Call
from penstock.bench.overload.http import Player
from tests.e2e.process import Serve, Simulate

PROFILE = "8b-1xa100"


def calls(count: int, patience_s: float = 5.0, retries: int = 2) -> list[Call]:
    return [
        Call(0.02 * number, 6_000, 8, number % 2, patience_s=patience_s, retries=retries)
        for number in range(count)
    ]


async def test_answers_are_timed(simulate: Simulate, serve: Serve) -> None:
    penstock = await serve(await simulate(1, profile=PROFILE))
    log = await Player(penstock.port, 1.0, 1).play(calls(4))
    assert all(call.attempts == call.sent == 1 and not call.late for call in log.calls)
    assert log.calls[-1].good  # no prompt comes between its tokens
    assert all(0.1 < call.ttft_s < 4.0 for call in log.calls)
    assert sum(tokens for _, tokens in log.tokens) == 4 * (6_000 + 8)


async def test_who_is_refused_comes_back_when_it_is_told_to(
    simulate: Simulate, serve: Serve
) -> None:
    classes = [{"name": "standard", "max_wait_s": 1.5}]
    admission = {"enabled": True, "classes": classes}
    penstock = await serve(await simulate(1, profile=PROFILE), admission=admission)
    log = await Player(penstock.port, 1.0, 1).play(calls(12))
    refused = [call for call in log.calls if call.refused]
    assert refused
    assert len(log.refusals) == sum(call.refused for call in refused)
    assert all(call.attempts == call.refused + call.sent for call in refused)
    assert any(call.good for call in refused)


async def test_who_waits_too_long_leaves_and_tries_again(simulate: Simulate, serve: Serve) -> None:
    backends = await simulate(1, profile=PROFILE)
    penstock = await serve(backends, admission={"enabled": False})
    log = await Player(penstock.port, 1.0, 1).play(calls(8, patience_s=0.6, retries=1))
    late = [call for call in log.calls if call.late]
    assert late
    assert all(call.attempts == 2 for call in late if not call.good)
    await penstock.until_at_rest()


def test_the_table_in_virtual_time(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["overload", "--mix", "uniform", "--load", "2", "--length-s", "25", "--jobs", "1"]
    assert main(arguments) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| 2 ")]
    assert [row.split()[2] for row in rows] == ["at_once", "admission"]
