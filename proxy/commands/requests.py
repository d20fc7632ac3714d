"""`penstock requests`: recent requests as one table that says where their time went."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.proxy.commands.admin_client import add_arguments, client_of
from penstock.proxy.commands.plain_text import json_text
from penstock.proxy.commands.time_spent import (
    BACKEND,
    CLIENT,
    LINE,
    LOST,
    PENSTOCK,
    mostly,
    result,
    seconds,
    spent_ms,
)

# The five after TOTAL add up to it.
_HEADS: Final = (
    "REQUEST",
    "TENANT",
    "BACKEND",
    "RESULT",
    "MOSTLY",
    "BEGAN",
    "FIRST TOKEN",
    "TOTAL",
    "CLIENT",
    "PENSTOCK",
    "IN LINE",
    "FAILED TRIES",
    "AT BACKEND",
)
_LEFT: Final = 5  # so many columns are aligned to the left


def add_requests(commands: Any) -> None:
    """Add the command and its arguments."""
    parser = commands.add_parser(
        "requests",
        help="show recent requests, and where their time went",
        epilog="Example: penstock requests --slow --tenant research; exit status 1 when the proxy "
        "does not answer.",
    )
    parser.add_argument("--slow", action="store_true", help="the slowest of the last minutes")
    parser.add_argument("--failed", action="store_true", help="only those that failed")
    parser.add_argument("--tenant", metavar="T", help="only requests of tenant T")
    parser.add_argument("--backend", metavar="B", help="only requests with an attempt at backend B")
    parser.add_argument("--limit", metavar="N", help="at most so many (default 50)")
    parser.add_argument("--json", action="store_true", help="print all fields, as JSON")
    add_arguments(parser)
    parser.set_defaults(command=requests)


def requests(parsed: argparse.Namespace) -> int:
    """Print the table, or JSON."""
    query = {name: "true" for name in ("slow", "failed") if getattr(parsed, name)}
    for name in ("tenant", "backend", "limit"):
        if getattr(parsed, name) is not None:
            query[name] = getattr(parsed, name)
    entries = client_of(parsed).requests(query)
    if parsed.json:
        print(json_text(entries))
    elif not entries:
        print("No failed request is kept." if parsed.failed else "No such request is kept.")
    else:
        print(table(entries))
    return 0


def table(entries: Sequence[Mapping[str, Any]]) -> str:
    """The table with aligned columns, and how to see more."""
    rows = [_HEADS, *map(_row, entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if number < _LEFT else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, "", f"More on one: penstock trace {entries[0]['id']}"])


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    backend = entry["backend"] or "-"
    if entry["attempts"] > 1:
        backend += f" ({entry['attempts']} attempts)"
    columns = (CLIENT, PENSTOCK, LINE, LOST, BACKEND)
    return (
        entry["id"],
        entry["tenant"] or "-",
        backend,
        result(entry),
        mostly(entry),
        f"{entry['ago_s']:,.0f} s ago",
        seconds(entry["ttft_ms"]),
        seconds(entry["duration_ms"]),
        *(seconds(spent_ms(entry, names)) for names in columns),
    )
