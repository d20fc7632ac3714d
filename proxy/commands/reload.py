"""`penstock reload`: has a running proxy read its configuration again."""

import argparse
import sys
from typing import Any

import orjson

from penstock.proxy.commands.admin_client import Invalid, add_arguments, client_of


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
    again.add_argument("--json", action="store_true", help="print the change as JSON")
    add_arguments(again)
    again.set_defaults(command=reload)


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
