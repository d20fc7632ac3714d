"""`penstock usage`: what each tenant has used, and what is left of its budgets."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.proxy.commands.admin_client import client_of, show
from penstock.proxy.commands.plain_text import aligned

_HEADS: Final = (
    "TENANT",
    "MODEL",
    "REQUESTS",
    "PROMPT TOKENS",
    "CACHED",
    "COMPLETION TOKENS",
)
_LEFT: Final = 2  # so many columns are aligned to the left


def usage(parsed: argparse.Namespace) -> int:
    """Print two tables, or JSON. Returns 1 if the tenant that is asked for does not exist."""
    tenants = client_of(parsed).listed("tenants")
    if parsed.tenant is not None:
        known = [each["name"] for each in tenants]
        tenants = [each for each in tenants if each["name"] == parsed.tenant]
        if not tenants:
            names = ", ".join(known[:20]) or "none"
            print(f"penstock: no tenant has this name; tenants: {names}", file=sys.stderr)
            return 1
    return show(parsed, tenants, text)


def text(tenants: Sequence[Mapping[str, Any]]) -> str:
    """Both tables."""
    if not tenants:
        return "No tenants are configured."
    return "\n".join([*_used(tenants), *_budgets(tenants)])


def _used(tenants: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [_HEADS]
    for tenant in tenants:
        for used in tenant["models"]:
            counts = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
            numbers = [f"{used[name]:,}" for name in counts]
            rows.append((tenant["name"], used["model"], *numbers))
        if not tenant["models"]:
            rows.append((tenant["name"], "-", "0", "0", "0", "0"))
    return aligned(rows, _LEFT)


def _budgets(tenants: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is left, for tenants that have budgets."""
    rows: list[tuple[str, ...]] = [("TENANT", "BUDGET", "ALLOWED", "LEFT", "FULL IN")]
    for tenant in tenants:
        for budget in tenant["budgets"]:
            full_s = budget["full_in_s"]
            full = "-" if full_s is None else _time(full_s)
            numbers = (f"{budget['allowed']:,}", f"{budget['left']:,}", full)
            rows.append((tenant["name"], budget["limit"], *numbers))
    if len(rows) == 1:
        return []
    refused = [
        f"Refused for its budget: {each['name']}, {each['refused']:,} requests."
        for each in tenants
        if each["refused"]
    ]
    return ["", *aligned(rows, _LEFT), *refused]


def _time(seconds: float) -> str:
    """A budget of a day is full in hours."""
    for unit_s, unit in ((3_600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds:.0f} s"
