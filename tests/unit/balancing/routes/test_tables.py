"""Each row of each table is decided as it was decided by hand."""

import pytest

from penstock.balancing.routes.table import RouteTable
from tests.unit.balancing.routes.rows import TABLES, read, request, table

NAMES = sorted(path.name for path in TABLES.iterdir())
ROWS = [(name, row, wanted) for name in NAMES for row, wanted in read(name)[1]]


def told(routes: RouteTable, row: str) -> str:
    decision = routes.decide(request(row, draw=len(row) << 40))
    if decision is None:
        return "-"
    target = decision.target
    if target is None:
        return f"{decision.rule.name}: refused"
    sent = f" as {target.model}" if target.model is not None else ""
    return f"{decision.rule.name}: {target.pool}{sent}"


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_decided_as_by_hand(name: str) -> None:
    rules, rows = read(name)
    routes = table(*rules)
    wrong = []
    for row, wanted in rows:
        rule, _, targets = wanted.partition(": ")
        allowed = [f"{rule}: {target}" for target in targets.split(" or ")] if targets else ["-"]
        found = told(routes, row)
        if found not in allowed:
            wrong.append(f"{row} | {found}, not {wanted}")
    assert not wrong


def test_there_are_enough_rows() -> None:
    assert len({(name, row) for name, row, _ in ROWS}) == len(ROWS) >= 150
