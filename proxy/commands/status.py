"""`penstock status`: why it is slow, the state of the proxy itself, and the fleet as one table."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from math import ceil
from shutil import get_terminal_size
from typing import Any, Final

from penstock.proxy.commands.admin_client import (
    AdminClient,
    AdminError,
    add_arguments,
    client_of,
    show,
)
from penstock.proxy.commands.fleet_table import UNKNOWN, age, table
from penstock.proxy.commands.time_spent import heads_of

# Of the reasons of refusals so many are told.
REASONS_MAX: Final = 4


def proxy_lines(proxy: Mapping[str, Any]) -> list[str]:
    """Lines on its state, its last reload, and what it refuses. Fields of an older version may
    be missing."""
    return [_state(proxy), *_reload(proxy), *_refused(proxy), *told_of(proxy)]


def told_of(proxy: Mapping[str, Any]) -> list[str]:
    """Lines on what is not as it should be, and on what waits. None while all is well."""
    lines = []
    if proxy["state"] == "draining":
        lines.append("This proxy is draining: it is not ready, and will soon refuse new requests.")
    if proxy["state"] == "starting":
        lines.append("This proxy is starting: it has not probed every backend yet.")
    if proxy["state"] == "memory":
        lines.append("This proxy refuses every request: it lacks memory, see its log.")
    lines += [
        f"Process {each['pid']}, from before the restart, still has {each['requests']:,} requests."
        for each in proxy.get("former", ())
    ]
    lines += [_source(each) for each in proxy.get("discovery", ()) if each["problem"]]
    if waiting := proxy.get("needs_restart"):
        lines.append(f"Changed settings that wait for a restart: {', '.join(waiting)}")
    queued = {name: count for name, count in proxy.get("waiting", {}).items() if count}
    if queued:
        classes = ", ".join(f"{name} {count:,}" for name, count in queued.items())
        lines.append(f"Requests that wait for room at a backend: {classes}.")
    return lines


def _source(told: Mapping[str, Any]) -> str:
    """A source that does not tell the backends of its pool."""
    kept = "it has told no backend yet"
    if told["age_s"] is not None:
        kept = f"its list of {told['backends']} backends from {age(told['age_s'])} ago stays"
    return f"Discovery of pool {told['pool']} by {told['source']}: {told['problem']}; {kept}."


def _state(proxy: Mapping[str, Any]) -> str:
    up_s, since, lag_ms = proxy.get("up_s"), proxy.get("since"), proxy.get("lag_ms")
    up = f"up {age(up_s)} since {_moment(since)}" if up_s is not None and since else "up -"
    queued = sum(proxy.get("waiting", {}).values())
    late = f"{lag_ms:.0f} ms" if lag_ms is not None else UNKNOWN
    opened = f"{proxy['open_requests']:,}" if "open_requests" in proxy else UNKNOWN
    return (
        f"Proxy {proxy['state']}, {up}, {proxy['version']} {proxy.get('build', '')}".rstrip()
        + f", {opened} open, {queued:,} queued, lag {late}"
    )


def _reload(proxy: Mapping[str, Any]) -> list[str]:
    last, problems = proxy.get("last_reload"), proxy["reload_failed"]
    when = f" {age(last['age_s'])} ago, {_moment(last['at'])}" if last else ""
    if problems:
        kept = "the previous configuration is still in use:"
        return [f"The last reload failed{when}; {kept}", *(f"  {line}" for line in problems)]
    return [f"The last reload succeeded{when}."] if last else []


def _refused(proxy: Mapping[str, Any]) -> list[str]:
    reasons: Mapping[str, int] = proxy.get("refused_lately") or {}
    if not reasons:
        return []
    told = [f"{reason} {count:,}" for reason, count in reasons.items()][:REASONS_MAX]
    if rest := sum([*reasons.values()][REASONS_MAX:]):
        told.append(f"others {rest:,}")
    return [f"Refused in the last minutes: {sum(reasons.values()):,} ({', '.join(told)})."]


def _moment(unix_s: float, form: str = "%m-%d %H:%M") -> str:
    """By the clock of whoever asks."""
    return datetime.fromtimestamp(unix_s).astimezone().strftime(form)


def slo_lines(objectives: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each objective in warning or critical, the critical ones first."""
    bad = [each for each in objectives if each["state"] != "ok"]
    bad.sort(key=lambda each: each["state"] != "critical")
    return [_line(each) for each in bad]


def _line(told: Mapping[str, Any]) -> str:
    where = [f"{key} {told[key]}" for key in ("pool", "class") if told[key] is not None]
    place = f" of {', '.join(where)}" if where else ""
    parts = [because] if (because := told.get("because")) else []
    if told["compliance"] is not None:
        share = f"{told['compliance']:.3%} of {told['requests']:,} requests are good"
        parts.append(f"{share}, {100.0 * told['objective']:.6g}% is asked for")
    left = max(-9.99, told["budget_left"])
    parts.append(f"{left:.0%} of the error budget is left")
    return f"SLO {told['slo']}{place} is {told['state']}: {'; '.join(parts)}."


EVERY_S: Final = 2.0
_CLEAR: Final = "\x1b[2J\x1b[H"


def watch(draw: Callable[[], list[str]], sleep: Callable[[float], None] = time.sleep) -> int:
    """Show the lines of `draw`. If it raises AdminError, show that and go on.

    Returns 0 when nobody reads any more.
    """
    try:
        while True:
            try:
                lines = draw()
            except AdminError as error:
                lines = [f"penstock: {error}"]
            _show([datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S"), *lines])
            sleep(EVERY_S)
    except BrokenPipeError:  # of `| head`, for example
        # Python writes what is left when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _show(lines: list[str]) -> None:
    if not sys.stdout.isatty():
        print("\n".join(lines), end="\n\n", flush=True)
        return
    size = get_terminal_size()
    print(_CLEAR + "\n".join(_fitting(lines, size.columns, size.lines - 1)), flush=True)


def _fitting(lines: list[str], columns: int, rows: int) -> list[str]:
    """The first lines, and how many are left out. All of them would push the first ones, which
    tell most, off the screen. The terminal wraps what is wider than it."""
    taken = [max(1, -(-len(line) // columns)) for line in lines]
    if sum(taken) <= rows:
        return lines
    shown = 0
    while shown < len(lines) and sum(taken[: shown + 1]) < rows:
        shown += 1
    return [*lines[:shown], f"{len(lines) - shown:,} more lines: penstock status shows all"]


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
    add_arguments(parser, status)


def status(parsed: argparse.Namespace) -> int:
    """Print the state of everything, or JSON. Returns 1 when no backend can serve or the proxy
    itself cannot. With `watch` it goes on until Ctrl-C."""
    client = client_of(parsed)
    if parsed.watch:
        return watch(lambda: _lines(client, client.listed("backends"), client.told("proxy")))
    backends, proxy = client.listed("backends"), client.told("proxy")
    show(parsed, backends, lambda told: "\n".join(_lines(client, told, proxy)))
    if proxy["state"] in ("draining", "memory"):
        return 1
    return 0 if any(backend["can_serve"] for backend in backends) else 1


def _lines(
    client: AdminClient, backends: Sequence[Mapping[str, Any]], proxy: Mapping[str, Any]
) -> list[str]:
    """What matters most first: the verdicts, the proxy, the service levels, the backends."""
    lines = verdict_of(client.listed("verdict")) + proxy_lines(proxy)
    if any(proxy["waiting"].values()):
        lines += heads_of(client.told("queue"))
    if proxy.get("slo_alarms"):
        lines += slo_lines(client.listed("slo"))
    lines += ["", _count_of(backends), *set_aside(backends)]
    lines += table(backends, get_terminal_size((0, 0)).columns).split("\n")
    notes = ejected_of(backends) + unlisted_of(backends) + several_of(backends)
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
            told = each["sentence"] if each["detail"] else "nothing is wrong."
            lines.append(f"{each['pool']}: {told}")
            continue
        since = _moment(each["since"], "%H:%M:%S")
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
                f"{backend['name']} is ejected, but may be able. "
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


def several_of(backends: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines on names that stand for several servers: connections go to one address only."""
    return [
        f"{each['name']}: its name has {each['servers']} addresses, and all requests go to one."
        " Let the pool find them: discover: {dns: NAME:PORT}."
        for each in backends
        if each.get("servers", 1) > 1
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
