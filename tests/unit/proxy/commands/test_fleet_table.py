"""The table of `penstock status`: what is told of each backend, and how wide it is."""

import re
from time import perf_counter
from typing import Any

import pytest

from penstock.balancing.backend import AdminState, Backend, State
from penstock.balancing.engine_report import STALE_S, EngineReport
from penstock.balancing.speed.compare import Pace
from penstock.proxy.admin.fleet_listing import describe
from penstock.proxy.commands.fleet_table import COLUMNS, age, table
from penstock.proxy.telemetry.pool_metrics import Lately

NOW_S = 1_000.0
ALL = {each.head for each in COLUMNS}


def backend(name: str = "gpu-0", *, told: bool = True, **fields: Any) -> dict[str, Any]:
    """The listing of a ready one, of which everything is known or nothing."""
    each, lately = Backend(name, "http://x", "chat"), Lately()
    each.state, each.reason = State.READY, ""
    if told:
        each.report = EngineReport(
            NOW_S, 31, 2, 0.834, 100_000, prefix_queries_tokens=1_000, prefix_hits_tokens=620
        )
        each.decode_speed.observe(1_000, 21.0, 0.0, 0.0)
        lately.first_token(0.4, NOW_S)
        lately.failed("timeout", NOW_S - 70.0)
    pace = Pace(1.0, 1.94) if told else None
    return describe(each, {}, NOW_S, lately=lately if told else None, pace=pace) | fields


def cells(backends: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The rows of the table, by column. No cell is empty, and two spaces end it."""
    head, *rows = (re.split("  +", line.strip()) for line in table(backends).splitlines())
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_everything_that_is_known_is_told() -> None:
    (row,) = cells([backend()])
    assert row.pop("MS/TOKEN").startswith(("20.", "21."))
    assert 0.4 <= float(row.pop("TTFT P95").removesuffix(" s")) <= 0.5
    told = "gpu-0|chat|ready|83%|31|2|1.9x decode|62%|1|0|0|0|timeout 1 min ago"
    assert "|".join(row.values()) == told
    head, line = table([backend()]).splitlines()
    assert head.index("STATE") == line.index("ready")  # texts begin below their heads
    assert head.index("KV") + len("KV") == line.index("83%") + len("83%")  # figures end there


def test_what_nobody_told_is_a_dash_and_never_zero() -> None:
    (row,) = cells([backend(told=False)])
    untold = {"KV", "RUN", "WAIT", "TTFT P95", "MS/TOKEN", "SLOWER", "HITS", "LAST ERROR"}
    assert {name for name, cell in row.items() if cell == "-"} == untold
    assert row["FAILED"] == "0"  # it is known that none failed


@pytest.mark.parametrize(
    ("report", "lacks", "told"),
    [
        (EngineReport(NOW_S - STALE_S), (), ("-", "-", "-", "-", "0")),
        (EngineReport(NOW_S, kv_told=False), (), ("-", "0", "0", "-", "0")),
        (EngineReport(NOW_S), (), ("0%", "0", "0", "-", "0")),  # no queries
        (
            EngineReport(NOW_S),
            ("lately", "slower", "token_ms"),
            ("0%", "0", "0", "-", "-"),
        ),  # an older proxy
    ],
)
def test_each_figure_may_be_missing(
    report: EngineReport, lacks: tuple[str, ...], told: tuple[str, ...]
) -> None:
    each = Backend("gpu-0", "http://x", "chat")
    each.report = report
    listed = {name: value for name, value in describe(each, {}, NOW_S).items() if name not in lacks}
    (row,) = cells([listed])
    assert told == tuple([row[name] for name in ("KV", "RUN", "WAIT", "HITS", "FAILED")])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"state": "ejected", "reason": "unreachable"}, "ejected (unreachable)"),
        ({"state": "warming", "share": 0.25}, "warming (25%)"),
        ({"admin_state": AdminState.DRAIN}, "drain"),
        ({"admin_state": "drain", "state": "suspect", "reason": "hung"}, "drain, suspect (hung)"),
        ({"admin_state": "maint", "state": "ejected", "reason": "hung"}, "maint"),
        ({"removed": True}, "removed"),
    ],
)
def test_the_state_says_what_is_wanted_and_why_it_is_not_ready(
    fields: dict[str, Any], told: str
) -> None:
    assert cells([backend(**fields)])[0]["STATE"] == told


def test_what_is_in_trouble_comes_first() -> None:
    fleet = [
        backend("fine", told=False),
        backend("fails"),
        backend("out", told=False, can_serve=False),
        backend("suspect", told=False, state="suspect", reason="hung"),
    ]
    assert [row["BACKEND"] for row in cells(fleet)] == ["out", "fails", "suspect", "fine"]


LONG = "vllm-llama-3-70b-instruct-7d9f8b6c5-"


@pytest.mark.parametrize("width", [80, 100, 120, 160])
@pytest.mark.parametrize("trouble", [False, True])
@pytest.mark.parametrize("names", ["gpu-", LONG])
def test_no_row_is_wider_than_the_terminal(width: int, trouble: bool, names: str) -> None:
    out = {"state": "ejected", "reason": "unreachable", "can_serve": False} if trouble else {}
    fleet = [backend(f"{names}{number:02}", told=True) | out for number in range(20)]
    lines = table(fleet, width).splitlines()
    assert max(map(len, lines)) <= width
    for head in ("BACKEND", "STATE", "KV", "WAIT", "TTFT P95", "FAILED", "LAST ERROR"):
        assert head in lines[0]
    assert all(f"{number:02} " in line for number, line in enumerate(lines[1:]))
    assert not trouble or "unreachable" in lines[1] or names == LONG


def test_a_narrow_table_leaves_out_first_what_nobody_told() -> None:
    fleet = [backend(f"gpu-{number}", told=False) for number in range(3)]
    wide, narrow = (table(fleet, width).splitlines()[0] for width in (0, 62))
    assert set(ALL) == {head for head in ALL if head in wide}
    assert "POOL" in narrow
    assert "SLOWER" not in narrow


def test_a_thousand_rows_take_a_moment() -> None:
    fleet = [backend(f"gpu-{number}") for number in range(1_000)]
    began_s = perf_counter()
    assert len(table(fleet, 80).splitlines()) == 1_001
    assert perf_counter() - began_s < 1.0


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.4, "0 s"), (59.9, "59 s"), (60, "1 min"), (3_600, "1 h"), (100_000, "1 d")],
)
def test_an_age_is_told_in_its_largest_unit(seconds: float, told: str) -> None:
    assert age(seconds) == told
