"""`penstock drain|ready|maint BACKEND`: sets a backend's admin state."""

import argparse
import sys
import time
from typing import Any, Final

from penstock.proxy.commands.admin_client import AdminError, client_of

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
    ends_s = time.monotonic() + parsed.timeout
    while not _done(backend, parsed.state):
        if time.monotonic() > ends_s:
            print(f"penstock: not within {parsed.timeout:g} s: {_line(backend)}", file=sys.stderr)
            return 1
        time.sleep(POLL_S)
        try:
            listing = client_of(parsed).backends()
        except AdminError:
            if time.monotonic() > ends_s:
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
