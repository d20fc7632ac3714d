"""`penstock status`: one table of the fleet, whether anything can serve, and the proxy itself."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.admin_client import client_of

_HEADS: Final = (
    "BACKEND",
    "POOL",
    "STATE",
    "ADMIN",
    "IN FLIGHT",
    "QUEUED TOKENS",
    "HELD TOKENS",
    "STREAMS",
    "REQUESTS",
    "FAILURES",
)


def status(parsed: argparse.Namespace) -> int:
    """Print the table, or the listing as JSON. Returns 1 when nothing can serve, or it drains."""
    client = client_of(parsed)
    backends, proxy = client.backends(), client.proxy()
    if parsed.json:
        print(orjson.dumps(backends, option=orjson.OPT_INDENT_2).decode())
    else:
        print("\n".join([table(backends), *told_of(proxy)]))
    if proxy["state"] == "draining":
        return 1
    return 0 if any(backend["can_serve"] for backend in backends) else 1


def told_of(proxy: Mapping[str, Any]) -> list[str]:
    """What is to be known of the proxy itself; nothing while all is well."""
    lines = []
    if proxy["state"] == "draining":
        lines.append("This proxy drains: it is not ready, and soon takes no new requests.")
    if proxy["state"] == "starting":
        lines.append("This proxy starts: it has not looked at every backend yet.")
    if proxy["reload_failed"]:
        lines.append("The last reload failed; the configuration before it is in use:")
        lines += [f"  {line}" for line in proxy["reload_failed"]]
    return lines


def table(backends: Sequence[Mapping[str, Any]]) -> str:
    """Columns aligned, numbers to the right, and a last line that sums it up."""
    rows = [_HEADS, *map(_row, backends)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if number < 4 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    serving = sum(backend["can_serve"] for backend in backends)
    return "\n".join([*lines, "", f"{serving} of {len(backends)} can serve"])


def _row(backend: Mapping[str, Any]) -> tuple[str, ...]:
    state = backend["state"]
    if backend["reason"]:
        state += f" ({backend['reason']})"
    elif state == "warming":
        state += f" ({backend['share']:.0%})"
    counts = (
        "requests_in_flight",
        "queued_prefill_tokens",
        "active_decode_tokens",
        "streams",
        "requests_total",
        "failures_total",
    )
    return (
        backend["name"],
        backend["pool"],
        state,
        "removed" if backend["removed"] else backend["admin_state"],
        *(f"{backend[name]:,}" for name in counts),
    )
