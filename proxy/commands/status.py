"""`penstock status`: why it is slow, the fleet as one table, and the state of the proxy itself."""

import argparse
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import ceil
from typing import Any, Final

import orjson

from penstock.proxy.commands.admin_client import client_of
from penstock.proxy.commands.slo_lines import slo_lines
from penstock.proxy.commands.waits import heads_of

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
    """Print the table, or JSON. Returns 1 when no backend can serve or the proxy itself cannot."""
    client = client_of(parsed)
    backends, proxy = client.backends(), client.proxy()
    if parsed.json:
        print(orjson.dumps(backends, option=orjson.OPT_INDENT_2).decode())
    else:
        lines = verdict_of(client.verdicts())
        lines += [table(backends), *ejected_of(backends), *set_aside(backends), *told_of(proxy)]
        if any(proxy["waiting"].values()):
            lines += heads_of(client.queue())
        if proxy.get("slo_alarms"):
            lines += slo_lines(client.slos())
        print("\n".join(lines))
    if proxy["state"] in ("draining", "memory"):
        return 1
    return 0 if any(backend["can_serve"] for backend in backends) else 1


def verdict_of(verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each pool a line on what makes it slow, and what to do. What is fine comes last."""
    lines: list[str] = []
    for each in sorted(verdicts, key=lambda each: each["kind"] == "fine"):
        if each["kind"] == "fine":
            lines.append(f"{each['pool']}: nothing is wrong.")
            continue
        since = datetime.fromtimestamp(each["since"]).astimezone().strftime("%H:%M:%S")
        lines.append(f"{each['pool']}, since {since}: {each['sentence']}")
        lines += [f"  To do: {step}" for step in each["to_do"]]
    return [*lines, ""] if lines else []


def ejected_of(backends: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines on ejected backends: which of them may still serve, and what a return waits for."""
    lines = []
    for backend in backends:
        if backend["state"] == "ejected" and backend["can_serve"]:
            lines.append(
                f"{backend['name']} is ejected on suspicion only. "
                "It serves requests when no other backend can."
            )
        to_return, engine = backend.get("to_return"), backend["engine"]
        if backend["admin_state"] == "maint" or not to_return or not to_return["passed_probes"]:
            continue
        if engine is not None and engine["awake"] is False:
            continue  # the reason says that it is asleep
        missing = to_return["needed_probes"] - to_return["passed_probes"]
        steps = [f"{missing} more passed probe{'s' * (missing > 1)}"] if missing else []
        if to_return["wait_s"]:
            steps.append(f"{ceil(to_return['wait_s'])} s of its waiting time")
        steps.append("a passed deep probe")
        lines.append(
            f"{backend['name']} answers its probes again. Before it returns: {', '.join(steps)}."
        )
    return lines


def set_aside(backends: Sequence[Mapping[str, Any]]) -> list[str]:
    """How to go on when nothing can serve because of the operator's own commands."""
    names = [each["name"] for each in backends if each["admin_state"] != "ready"]
    if not names or any(each["can_serve"] for each in backends):
        return []
    return [f"In drain or maint: {', '.join(names)}. To go on, run: penstock ready {names[0]}"]


def told_of(proxy: Mapping[str, Any]) -> list[str]:
    """Lines on the proxy itself. None while all is well."""
    lines = []
    if proxy["state"] == "draining":
        lines.append("This proxy is draining: it is not ready, and will soon refuse new requests.")
    if proxy["state"] == "starting":
        lines.append("This proxy is starting: it has not probed every backend yet.")
    if proxy["state"] == "memory":
        lines.append("This proxy refuses every request: it lacks memory, see its log.")
    if proxy["reload_failed"]:
        lines.append("The last reload failed; the previous configuration is still in use:")
        lines += [f"  {line}" for line in proxy["reload_failed"]]
    if waiting := proxy.get("needs_restart"):
        lines.append(f"Changed settings that wait for a restart: {', '.join(waiting)}")
    queued = {name: count for name, count in proxy.get("waiting", {}).items() if count}
    if queued:
        classes = ", ".join(f"{name} {count:,}" for name, count in queued.items())
        lines.append(f"Requests that wait for room at a backend: {classes}.")
    return lines


def table(backends: Sequence[Mapping[str, Any]]) -> str:
    """The table with aligned columns, and a last line that counts the serving backends."""
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
