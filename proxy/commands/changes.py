"""`penstock drain|ready|maint`, `reload`, `restart` and `canary`: an operator's word to a proxy."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any, Final

import orjson

from penstock.proxy.commands.admin_client import (
    AdminError,
    Invalid,
    add_arguments,
    client_of,
    show,
)

POLL_S: Final = 0.2


def set_admin_state(parsed: argparse.Namespace) -> int:
    """Set the state. With --wait: return when it is reached, or 1 when that takes too long."""
    client = client_of(parsed)
    backend = client.set_state(parsed.backend, parsed.state)
    line = _line(backend)
    print(line)
    if parsed.state != "ready" and not backend.get("pool_can_serve", True):
        print(
            f"penstock: warning: no backend of the pool {backend['pool']} can serve now, and new "
            f"requests get 503; to go on, run: penstock ready {parsed.backend}",
            file=sys.stderr,
        )
    if not parsed.wait:
        return 0
    ends_s = monotonic() + parsed.timeout
    while not _done(backend, parsed.state):
        if monotonic() > ends_s:
            print(f"penstock: not within {parsed.timeout:g} s: {_line(backend)}", file=sys.stderr)
            return 1
        sleep(POLL_S)
        try:
            listing = client_of(parsed).listed("backends")
        except AdminError:
            if monotonic() > ends_s:
                raise
            continue  # the proxy may be busy or restarting
        found = [each for each in listing if each["name"] == parsed.backend and not each["removed"]]
        if not found:
            print(f"penstock: {parsed.backend} is gone", file=sys.stderr)
            return 1
        (backend,) = found
        if backend["admin_state"] != parsed.state:
            print(f"penstock: somebody else has set it: {_line(backend)}", file=sys.stderr)
            return 1
    if _line(backend) != line:
        print(_line(backend))
    return 0


def _done(backend: dict[str, Any], state: str) -> bool:
    """Drained means nothing in flight. Ready means that it takes requests again."""
    if state == "ready":
        return bool(backend["can_serve"])
    return bool(backend["requests_in_flight"] == 0)


def _line(backend: dict[str, Any]) -> str:
    reason = f" ({backend['reason']})" if backend["reason"] else ""
    return (
        f"{backend['name']}: wanted {backend['admin_state']}, state {backend['state']}{reason}, "
        f"{backend['requests_in_flight']} in flight"
    )


def add_reload(commands: Any) -> None:
    """Add the command."""
    again = commands.add_parser(
        "reload",
        help="read the configuration again, as SIGHUP does",
        description="Reads the file, the environment and the secrets' files again. When anything "
        "is wrong, nothing changes.",
        epilog="Example: penstock reload; exit status 2 when the configuration has errors, 1 when "
        "the proxy drains or does not answer.",
    )
    add_arguments(again, reload, with_json=True)


def reload(parsed: argparse.Namespace) -> int:
    """Reload and tell what changed. 2: the new configuration has errors, and nothing changed."""
    try:
        change = client_of(parsed).reload()
    except Invalid as error:
        for issue in error.issues:
            print(issue, file=sys.stderr)
        print(f"penstock: {error}", file=sys.stderr)
        return 2
    if parsed.json:
        sys.stdout.buffer.write(orjson.dumps(change, option=orjson.OPT_APPEND_NEWLINE))
        return 0
    added, removed = ", ".join(change["added"]), ", ".join(change["removed"])
    print(f"reloaded: added {added or 'none'}, removed {removed or 'none'}, kept {change['kept']}")
    if change["needs_restart"]:
        print(f"the old value stays until a restart: {', '.join(change['needs_restart'])}")
    return 0


# The next process opens its admin port within milliseconds.
UP_WITHIN_S: Final = 10.0
UP_POLL_S: Final = 0.1


def add_restart(commands: Any) -> None:
    """Add the command."""
    again = commands.add_parser(
        "restart",
        help="start the process anew beside the present one, which keeps its streams",
        description="For `penstock serve --supervised`. The next process runs the code that is "
        "installed now and reads the configuration anew. Once it is ready it takes over both "
        "ports, and no client waits. The former process ends with its last stream. If the next "
        "one cannot start, the present one goes on.",
        epilog="Example: penstock restart; exit status 1 when the next process does not start, "
        "there is no supervisor, or the proxy does not answer.",
    )
    add_arguments(again, restart)


def restart(parsed: argparse.Namespace) -> int:
    """Restart, and tell which version serves now."""
    client = client_of(parsed)
    client.restart()
    until_s = monotonic() + UP_WITHIN_S
    while True:
        try:
            proxy = client.told("proxy")
            break
        except AdminError:
            if monotonic() > until_s:
                raise
            sleep(UP_POLL_S)
    print(f"restarted: penstock {proxy['version']} ({proxy['build']}) serves")
    return 0


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
    add_arguments(told, canary, with_json=True)


def canary(parsed: argparse.Namespace) -> int:
    """Print where all canaries stand, or where one stands after it was told. Returns 0."""
    client = client_of(parsed)
    if parsed.word != "status" and parsed.route is None:
        raise AdminError(f"say which: penstock canary {parsed.word} ROUTE")
    if parsed.word == "status":
        found = client.listed("canaries")
        if parsed.route is not None:
            found = [each for each in found if each["route"] == parsed.route]
            if not found:
                raise AdminError(f"the route {parsed.route} has no canary")
    else:
        found = [client.tell_canary(parsed.route, parsed.word)]
    return show(parsed, found, canary_text)


def canary_text(found: Sequence[Mapping[str, Any]]) -> str:
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
