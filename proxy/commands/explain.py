"""`penstock explain FILE.json`: where a request would go, each backend's cost, and its wait."""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.proxy.commands.admin_client import AdminError, client_of, show
from penstock.proxy.commands.plain_text import aligned
from penstock.proxy.commands.time_spent import prospect

# The most routes that are told.
ROUTES_MAX: Final = 20
_NEEDS_LABEL: Final = "the classifier would be asked, and its label may change this (--label LABEL)"
# Valid names and values of HTTP headers.
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[\t -~]*")


def explain(parsed: argparse.Namespace) -> int:
    """Print the table, or JSON. Returns 1 when the request would be refused."""
    try:
        body = sys.stdin.buffer.read() if str(parsed.file) == "-" else parsed.file.read_bytes()
    except OSError as error:
        raise AdminError(f"cannot read {parsed.file}: {error.strerror}") from None
    headers = _headers(parsed.header)
    found = client_of(parsed).explain(body, parsed.path, parsed.tenant, headers, parsed.label)
    show(parsed, found, text)
    taken = found["chosen"] or any(each["eligible"] for each in found["candidates"])
    return 0 if taken and found["admission"]["outcome"] != "refuse" else 1


def text(found: Mapping[str, Any]) -> str:
    """The estimate, the costs in milliseconds, and why the other backends lose."""
    wanted = found["request"]
    lines = [
        f"{wanted['prompt_tokens']:,} prompt tokens, {wanted['expected_output_tokens']:,} "
        f"expected; pool {found['pool'] or '-'}, policy {found['policy'] or '-'}",
        *_routes(found["routes"], wanted["model"], found["pool"]),
        *[_NEEDS_LABEL] * found["needs_label"],
        "",
        *_table(found["candidates"]),
        "",
    ]
    lines += [
        f"{each['name']}: {each['why_not']}" for each in found["candidates"] if each["why_not"]
    ]
    lines += [
        f"{each['name']} would win with {each['to_win']}"
        for each in found["candidates"]
        if each["to_win"]
    ]
    if found["chosen"]:
        lines.append(f"-> {' or '.join(found['chosen'])} ({found['reason']})")
    elif found["pool"] is None:
        lines.append("-> no backend can take it now")
    else:
        lines.append(f"-> not predictable: {found['policy']} draws at random")
    lines += prospect(found["admission"])
    return "\n".join(lines)


def _routes(routes: Sequence[Mapping[str, Any]], model: str | None, pool: str | None) -> list[str]:
    """The route that counts, and why those before it do not. Later ones do not matter then."""
    lines: list[str] = []
    for each in routes:
        if each["taken"]:
            target = f"pool {pool or '-'}" + (f", model {model}" if model else "")
            return [*lines[-ROUTES_MAX:], f"route {each['name']} counts: {target}"]
        lines.append(f"route {each['name']} does not count: {each['why_not']}")
    return [*lines[-ROUTES_MAX:], "no route counts"] if routes else []


def _table(candidates: Sequence[Mapping[str, Any]]) -> list[str]:
    costs = [each["terms"] for each in candidates if each["terms"]]
    names = list(costs[0]) if costs else []
    heads = [name.removesuffix("_s").upper() for name in names]
    rows = [("BACKEND", "POOL", "CACHED", "COST MS", *heads)]
    for each in candidates:
        terms = each["terms"]
        rows.append(
            (
                each["name"],
                each["pool"],
                f"{each['cached_tokens']:,}",
                f"{1e3 * each['cost_s']:,.1f}" if each["cost_s"] is not None else "-",
                *(f"{1e3 * terms[name]:,.1f}" if terms else "-" for name in names),
            )
        )
    return aligned(rows, 2)


def _headers(given: Sequence[str]) -> dict[str, str]:
    headers = {}
    for line in given:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name.strip()) or not _VALUE.fullmatch(value):
            raise AdminError(f"--header must look like 'x-session-id: abc', got {line!r}")
        headers[name.strip()] = value.strip()
    return headers
