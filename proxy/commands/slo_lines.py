"""Which service levels are missed or nearly missed, in words."""

from collections.abc import Iterable, Mapping
from typing import Any


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
