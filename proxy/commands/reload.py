"""`penstock reload`: has a running proxy read its configuration again."""

import argparse
import sys

import orjson

from penstock.proxy.commands.admin_client import Invalid, client_of


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
