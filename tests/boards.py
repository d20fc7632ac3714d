"""The Grafana boards as tests read them: their panels, and the queries as Prometheus gets them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from penstock.proxy.commands.alerts import FOLDER

Board = dict[str, Any]
Panel = dict[str, Any]
BOARDS: Final = {
    path.stem: orjson.loads(path.read_bytes()) for path in sorted(Path(FOLDER).glob("*.json"))
}


class Asked(NamedTuple):
    """One query of a panel. `place`: where it is, in words."""

    place: str
    expr: str
    legend: str


def panels(board: Board) -> list[Panel]:
    """All that show something: rows are headings."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def asked(*, pool: str | None = None, rate: str = "5m", span: str = "1h") -> Iterator[Asked]:
    """Every query of every board, with the variables filled in as Grafana does.

    Everything is chosen, or only this pool. `.+` stands for the list of all values.
    """
    for name, board in BOARDS.items():
        values = {"__rate_interval": rate, "__range": span}
        for each in board["templating"]["list"]:
            if each["type"] == "query":
                values[each["name"]] = each.get("allValue") or ".+"
        if pool is not None:
            values["pool"] = pool
        for panel in panels(board):
            for target in panel["targets"]:
                yield Asked(
                    f"{name}: {panel['title']} {target['refId']}",
                    re.sub(r"\$(\w+)", lambda found: values[found[1]], target["expr"]),  # noqa: B023
                    target.get("legendFormat", ""),
                )
