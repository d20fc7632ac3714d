"""`penstock boards`: writes the Grafana boards that come with penstock.

`make references` writes them into `proxy/boards` (docs/boards has the script). Each has a field for
the runbook's address, because penstock does not know where its users keep theirs.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

FOLDER: Final = Path(__file__).parents[1] / "boards"
RUNBOOK: Final = "docs/runbook.md"


def add_boards(commands: Any) -> None:
    """Add the command to the command line."""
    boards = commands.add_parser(
        "boards",
        help="write Grafana boards for penstock's metrics",
        description="Writes three boards into a folder, as JSON for Grafana 11.6 or newer: the "
        "overview, the engines, tenants and cost. Import them, or let Grafana read the folder.",
        epilog="Example: penstock boards /var/lib/grafana/dashboards --runbook "
        "https://docs.example.com/penstock/runbook.html; files of the same names are replaced. "
        "Exit status 1 when the folder cannot be written.",
    )
    boards.add_argument("folder", type=Path, metavar="DIR", help="folder, made if it is missing")
    boards.add_argument(
        "--runbook",
        default=RUNBOOK,
        metavar="URL",
        help="where the panels' links to the runbook lead (your copy of docs/runbook.md)",
    )
    boards.set_defaults(command=write)


def write(parsed: argparse.Namespace) -> int:
    """Write the boards and print their paths. Raises OSError."""
    parsed.folder.mkdir(exist_ok=True)
    for name, board in _boards():
        _set_runbook(board, parsed.runbook)
        path = parsed.folder / name
        path.write_bytes(orjson.dumps(board, option=orjson.OPT_INDENT_2) + b"\n")
        print(path)
    return 0


def _boards() -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each file, and the board in it."""
    for path in sorted(FOLDER.glob("*.json")):
        yield path.name, orjson.loads(path.read_bytes())


def _set_runbook(board: dict[str, Any], url: str) -> None:
    (field,) = (each for each in board["templating"]["list"] if each["name"] == "runbook")
    field["query"] = url
    field["current"] = {"text": url, "value": url}
