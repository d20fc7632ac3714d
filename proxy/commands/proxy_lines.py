"""What `penstock status` says of the proxy itself."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from penstock.proxy.commands.fleet_table import UNKNOWN, age

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
    if waiting := proxy.get("needs_restart"):
        lines.append(f"Changed settings that wait for a restart: {', '.join(waiting)}")
    queued = {name: count for name, count in proxy.get("waiting", {}).items() if count}
    if queued:
        classes = ", ".join(f"{name} {count:,}" for name, count in queued.items())
        lines.append(f"Requests that wait for room at a backend: {classes}.")
    return lines


def _state(proxy: Mapping[str, Any]) -> str:
    up_s, since, lag_ms = proxy.get("up_s"), proxy.get("since"), proxy.get("lag_ms")
    up = f"up {age(up_s)} since {_moment(since)}" if up_s is not None and since else "up -"
    queued = sum(proxy.get("waiting", {}).values())
    late = f"{lag_ms:.0f} ms" if lag_ms is not None else UNKNOWN
    return (
        f"Proxy {proxy['state']}, {up}, {proxy['version']} {proxy.get('build', '')}".rstrip()
        + f", {_count(proxy.get('open_requests'))} open, {queued:,} queued, lag {late}"
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
    return [f"Refused in the last minutes: {sum(reasons.values()):,} ({_most(reasons)})."]


def _most(reasons: Mapping[str, int]) -> str:
    """The most frequent reasons, which come first."""
    told: Sequence[str] = [f"{reason} {count:,}" for reason, count in reasons.items()]
    rest = sum(list(reasons.values())[REASONS_MAX:])
    return ", ".join([*told[:REASONS_MAX], *([f"others {rest:,}"] if rest else [])])


def _count(count: int | None) -> str:
    return f"{count:,}" if count is not None else UNKNOWN


def _moment(unix_s: float) -> str:
    """By the clock of whoever asks."""
    return datetime.fromtimestamp(unix_s).astimezone().strftime("%m-%d %H:%M")
