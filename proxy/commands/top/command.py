"""`penstock top`: its arguments, and what it needs before the screen can be taken."""

import argparse
import os
import sys
from importlib.util import find_spec
from random import Random
from time import time
from typing import Any

from penstock.proxy.commands.admin_client import AdminError, add_arguments, client_of


def add_top(commands: Any) -> None:
    """Add the command and its arguments."""
    parser = commands.add_parser(
        "top",
        help="show the fleet live in a terminal, as the page does",
        description="Shows what the page at /ui shows: why it is slow, service levels, each "
        "backend, what waits, and recent requests. Keys sort, filter, open a request, and drain a "
        "backend. The key ? names them all. NO_COLOR switches colours off.",
        epilog="Example: penstock top --admin http://10.0.0.1:9321 --token-file admin-token; exit "
        "status 0 after q, 130 after Ctrl-C, 1 when the proxy does not answer at the beginning.",
    )
    add_arguments(parser, top)


def top(parsed: argparse.Namespace) -> int:
    """Show it until a key ends it. Raises AdminError."""
    if find_spec("textual") is None:
        raise AdminError(
            "penstock top needs textual: pip install 'penstock[top]', or '.[top]' in a checkout;"
            " penstock status --watch needs nothing"
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        raise AdminError("penstock top needs a terminal; penstock status --watch needs none")
    client = client_of(parsed)
    client.told("proxy")  # a wrong address or token is told here, where it can be read afterwards
    from penstock.proxy.commands.top.app import Top
    from penstock.proxy.commands.top.feed import Feed

    # An exported size would be taken for the terminal's own, which changes with its window.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    feed = Feed(client.url, client.headers, time, Random())
    shown = Top(client.url, feed.run, lambda: client_of(parsed), time())
    shown.run(mouse=False)  # so that the terminal's own marking and copying works
    return shown.return_code or 0
