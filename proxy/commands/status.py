"""`penstock status`: why it is slow, the state of the proxy itself, and the fleet as one table."""

import argparse
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import ceil
from shutil import get_terminal_size
from typing import Any

from penstock.proxy.commands.admin_client import AdminClient, add_arguments, client_of
from penstock.proxy.commands.fleet_table import table
from penstock.proxy.commands.plain_text import json_text
from penstock.proxy.commands.proxy_lines import proxy_lines
from penstock.proxy.commands.slo_lines import slo_lines
from penstock.proxy.commands.waits import heads_of
from penstock.proxy.commands.watch import watch


def add_status(commands: Any) -> None:
    """Add the command and its arguments."""
    parser = commands.add_parser(
        "status",
        help="show why it is slow, the proxy's own state, and the fleet as one table",
        epilog="Example: penstock status --json | jq '.[] | select(.state != \"ready\")'; exit "
        "status 1 when no backend can serve, the proxy drains, or it does not answer.",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print all fields, as JSON")
    how.add_argument(
        "--watch", action="store_true", help="show it again every 2 s, until Ctrl-C (status 130)"
    )
    add_arguments(parser)
    parser.set_defaults(command=status)


def status(parsed: argparse.Namespace) -> int:
    """Print the state of everything, or JSON. Returns 1 when no backend can serve or the proxy
    itself cannot. With `watch` it goes on until Ctrl-C."""
    client = client_of(parsed)
    if parsed.watch:
        return watch(lambda: _lines(client, client.backends(), client.proxy()))
    backends, proxy = client.backends(), client.proxy()
    if parsed.json:
        print(json_text(backends))
    else:
        print("\n".join(_lines(client, backends, proxy)))
    if proxy["state"] in ("draining", "memory"):
        return 1
    return 0 if any(backend["can_serve"] for backend in backends) else 1


def _lines(
    client: AdminClient, backends: Sequence[Mapping[str, Any]], proxy: Mapping[str, Any]
) -> list[str]:
    """What matters most first: the verdicts, the proxy, the service levels, the backends."""
    lines = verdict_of(client.verdicts()) + proxy_lines(proxy)
    if any(proxy["waiting"].values()):
        lines += heads_of(client.queue())
    if proxy.get("slo_alarms"):
        lines += slo_lines(client.slos())
    lines += ["", _count_of(backends), *set_aside(backends)]
    lines += table(backends, get_terminal_size((0, 0)).columns).split("\n")
    notes = ejected_of(backends) + unlisted_of(backends)
    return [*lines, "", *notes] if notes else lines


def _count_of(backends: Sequence[Mapping[str, Any]]) -> str:
    """How many can serve, and how many of these only as a last resort."""
    able = [backend for backend in backends if backend["can_serve"]]
    doubted = sum(backend["state"] == "ejected" for backend in able)
    line = f"{len(able) - doubted} of {len(backends)} can serve"
    return f"{line}, {doubted} more only as a last resort" if doubted else line


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
        newcomer = backend.get("newcomer")
        if newcomer is not None:
            lines.append(new_of(backend["name"], newcomer))
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
        lines.append(f"{backend['name']} passes its probes. Before it returns: {', '.join(steps)}.")
    return lines


def unlisted_of(backends: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line on each pool of which clients cannot list any model."""
    serving: dict[str, list[object]] = {}
    for each in backends:
        if each["can_serve"]:
            serving.setdefault(each["pool"], []).extend(each["models"])
    return [
        f"{pool}: its backends do not tell their models, so /v1/models lists only those named in"
        " `pools[].models`."
        for pool, models in serving.items()
        if not models
    ]


def new_of(name: str, newcomer: Mapping[str, Any]) -> str:
    """A line on a backend that is new in its pool, or was taken out when it was."""
    requests, why = newcomer["requests"], newcomer["why"]
    if newcomer["stage"] == "worse":
        return (
            f"{name} was new, and worse than its peers: {why}. "
            f"It does not return by itself. To bring it back, run: penstock ready {name}"
        )
    if newcomer["stage"] == "waits":
        return (
            f"{name} is new. It waits to be judged: four new backends of its pool are judged first."
        )
    if why:
        return f"{name} is new, and worse than its peers: {why}. Its pool cannot spare it now."
    compared = f"{requests:,} request{'s' * (requests != 1)}"
    return f"{name} is new, and is judged beside its peers: {compared} so far."


def set_aside(backends: Sequence[Mapping[str, Any]]) -> list[str]:
    """How to go on when nothing can serve because of the operator's own commands."""
    names = [each["name"] for each in backends if each["admin_state"] != "ready"]
    if not names or any(each["can_serve"] for each in backends):
        return []
    return [f"In drain or maint: {', '.join(names)}. To go on, run: penstock ready {names[0]}"]
