"""What waits in penstock for room at a backend: by class, and by tenant."""

from collections.abc import Mapping
from typing import Any, Final

from penstock.proxy.commands.plain_text import fit, plain
from penstock.proxy.commands.top.figures import count, many, percent, seconds
from penstock.proxy.commands.top.line import Line, Span, joined, wrapped
from penstock.proxy.commands.waits import reason

NAME_WIDE: Final = 14
INDENT: Final = "  "


def waiting_line(queue: Mapping[str, Any], width: int) -> Line:
    """All of it in one line."""
    classes = [each for each in queue["classes"] if each["requests"]]
    if not classes:
        return (Span("WAITING", "head"), Span(f"  {_nothing(queue)}", "quiet"))
    told = [
        Span(f"{plain(each['name'])} {each['requests']:,} ({count(each['tokens'])} tokens)", "warn")
        for each in classes
    ]
    told += [Span(f"{_tenant(each)} {each['requests']:,}") for each in queue["tenants"]]
    return joined([Span("WAITING", "head"), *told], "  ", width)


def waiting_lines(queue: Mapping[str, Any], width: int, lines_max: int) -> list[Line]:
    """The classes with their pressure and what the next one waits for, then the tenants."""
    lines: list[Line] = [(Span("WAITING IN PENSTOCK", "head"),)]
    pressures: dict[str, float] = {}
    for pool in queue["pools"]:
        for name, value in pool["pressure"].items():
            pressures[name] = max(pressures.get(name, 0.0), value)
    for each in queue["classes"]:
        if queue["enabled"] or each["requests"]:
            lines += _class(each, pressures.get(each["name"], 0.0), width)
    if queue["tenants"]:
        lines.append((Span("by tenant", "quiet"),))
        lines += [
            (Span(fit(_tenant(each), NAME_WIDE)), Span(f" {each['requests']:>7,}"))
            for each in queue["tenants"]
        ]
    elif not any(each["requests"] for each in queue["classes"]):
        lines.append((Span(_nothing(queue), "quiet"),))
    return lines[:lines_max]


def _class(told: Mapping[str, Any], pressure: float, width: int) -> list[Line]:
    requests = told["requests"]
    much = f"{many(requests, 'request')}, {count(told['tokens'])} tokens" if requests else "0"
    lines: list[Line] = [
        (
            Span(fit(plain(told["name"]), NAME_WIDE)),
            Span(f" {much}", "warn" if requests else ""),
            Span(f", pressure {percent(pressure)}", "bad" if pressure >= 1.0 else "quiet"),
        )
    ]
    if head := told["next"]:
        next_one = plain(f"next: {seconds(head['waited_s'])}. {reason(head)}")
        lines += [
            (Span(INDENT), *line) for line in wrapped(next_one, "quiet", width - len(INDENT), 2)
        ]
    return lines


def _tenant(told: Mapping[str, Any]) -> str:
    return plain(told["name"]) if told["name"] else "without a key"


def _nothing(queue: Mapping[str, Any]) -> str:
    if queue["enabled"]:
        return "Nothing waits."
    return "Nothing waits here: admission is off (admission.enabled)."
