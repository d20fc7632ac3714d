"""`penstock restart`: the next process takes over, and the present one keeps its streams."""

import argparse
from time import monotonic, sleep
from typing import Any, Final

from penstock.proxy.commands.admin_client import AdminError, add_arguments, client_of

# The next process opens its admin port within milliseconds.
UP_WITHIN_S: Final = 10.0
POLL_S: Final = 0.1


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
    add_arguments(again)
    again.set_defaults(command=restart)


def restart(parsed: argparse.Namespace) -> int:
    """Restart, and tell which version serves now."""
    client = client_of(parsed)
    client.restart()
    until_s = monotonic() + UP_WITHIN_S
    while True:
        try:
            proxy = client.proxy()
            break
        except AdminError:
            if monotonic() > until_s:
                raise
            sleep(POLL_S)
    print(f"restarted: penstock {proxy['version']} ({proxy['build']}) serves")
    return 0
