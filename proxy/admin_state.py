"""`penstock drain|ready|maint BACKEND`: what the operator wants of a backend."""

import argparse
import sys
import time
from typing import Any, Final

from proxy.admin_client import AdminError, client_of

POLL_S: Final = 0.2


def set_admin_state(parsed: argparse.Namespace) -> int:
    """Set the state; with --wait return when that is done, 1 if it takes too long."""
    client = client_of(parsed)
    backend = client.set_state(parsed.backend, parsed.state)
    print(_line(backend))
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
            continue  # it may be busy, or restarting
        found = [each for each in listing if each["name"] == parsed.backend and not each["removed"]]
        if not found:
            print(f"penstock: {parsed.backend} is gone", file=sys.stderr)
            return 1
        (backend,) = found
        if backend["admin_state"] != parsed.state:
            print(f"penstock: somebody else has set it: {_line(backend)}", file=sys.stderr)
            return 1
    print(_line(backend))
    return 0


def _done(backend: dict[str, Any], state: str) -> bool:
    """Drained is: nothing in flight. Ready is: it takes requests again."""
    if state == "ready":
        return bool(backend["can_serve"])
    return bool(backend["requests_in_flight"] == 0)


def _line(backend: dict[str, Any]) -> str:
    reason = f" ({backend['reason']})" if backend["reason"] else ""
    return (
        f"{backend['name']}: admin state {backend['admin_state']}, {backend['state']}{reason}, "
        f"{backend['requests_in_flight']} in flight"
    )
