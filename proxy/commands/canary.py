"""`penstock canary status|promote|abort|restart`: where canaries stand, and an operator's word."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.proxy.commands.admin_client import AdminError, add_arguments, client_of
from penstock.proxy.commands.plain_text import json_text

WORDS: Final = ("promote", "abort", "restart")
EVENTS_TOLD: Final = 8


def add_canary(commands: Any) -> None:
    """Add the command to the command line."""
    told = commands.add_parser(
        "canary",
        help="where canaries stand, and a word to one",
        description="Tells where canaries stand and why, or moves one: `promote` gives it all"
        " requests, `abort` takes all from it, `restart` begins at its first step.",
        epilog="Example: penstock canary abort versions",
    )
    told.add_argument("word", choices=("status", *WORDS))
    told.add_argument("route", nargs="?", metavar="ROUTE", help="name of the route")
    add_arguments(told, canary, json=True)


def canary(parsed: argparse.Namespace) -> int:
    """Print where all canaries stand, or where one stands after it was told. Returns 0."""
    client = client_of(parsed)
    if parsed.word != "status" and parsed.route is None:
        raise AdminError(f"say which: penstock canary {parsed.word} ROUTE")
    if parsed.word == "status":
        found = client.canaries()
        if parsed.route is not None:
            found = [each for each in found if each["route"] == parsed.route]
            if not found:
                raise AdminError(f"the route {parsed.route} has no canary")
    else:
        found = [client.tell_canary(parsed.route, parsed.word)]
    print(json_text(found) if parsed.json else text(found))
    return 0


def text(found: Sequence[Mapping[str, Any]]) -> str:
    """A paragraph for each canary."""
    if not found:
        return "no canary"
    return "\n\n".join(["\n".join(_lines(each)) for each in found])


def _lines(each: Mapping[str, Any]) -> list[str]:
    model = f", model {each['model']}" if each["model"] else ""
    requests = each["requests"]
    lines = [
        f"{each['route']}: {each['stage'].replace('_', ' ')}, {each['percent']:g} % to pool"
        f" {each['pool']}{model}, since {each['since']}",
        f"  why: {each['why'] or '-'}",
        f"  requests compared: {requests['canary']:,} of the canary, {requests['stable']:,} others",
    ]
    if each["compared"]:
        lines += [f"  {part}" for part in each["compared"].split("; ")]
    for event in each["events"][-EVENTS_TOLD:]:
        stage = event["stage"].replace("_", " ")
        lines.append(f"  {event['at']}  {event['percent']:g} %  {stage}: {event['why']}")
    return lines
