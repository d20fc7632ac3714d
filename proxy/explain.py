"""`penstock explain FILE.json`: which backend would take this request, and what each would cost."""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.admin_client import AdminError, client_of

# What an HTTP header may be, as far as a command needs more.
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[\t -~]*")
_TERMS: Final = (
    ("wait_s", "WAIT"),
    ("prefill_s", "PREFILL"),
    ("later_s", "LATER"),
    ("others_s", "OTHERS"),
    ("step_s", "STEP"),
    ("held_s", "HELD"),
    ("beside_s", "BESIDE"),
)


def explain(parsed: argparse.Namespace) -> int:
    """Print the table, or the answer as JSON. Returns 1 when nobody would take it."""
    try:
        body = sys.stdin.buffer.read() if str(parsed.file) == "-" else parsed.file.read_bytes()
    except OSError as error:
        raise AdminError(f"cannot read {parsed.file}: {error.strerror}") from None
    found = client_of(parsed).explain(body, parsed.path, parsed.tenant, _headers(parsed.header))
    if parsed.json:
        print(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode())
    else:
        print(text(found))
    taken = found["chosen"] or any(each["eligible"] for each in found["candidates"])
    return 0 if taken else 1


def text(found: Mapping[str, Any]) -> str:
    """What was understood, the costs in milliseconds, and what the others would need."""
    wanted = found["request"]
    lines = [
        f"{wanted['prompt_tokens']:,} prompt tokens, {wanted['expected_output_tokens']:,} "
        f"expected; pool {found['pool'] or '-'}, policy {found['policy'] or '-'}",
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
        lines.append("-> nobody can take it now")
    else:
        lines.append(f"-> not known beforehand: {found['policy']} has no costs in seconds")
    return "\n".join(lines)


def _table(candidates: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [("BACKEND", "POOL", "CACHED", "COST MS", *(head for _, head in _TERMS))]
    for each in candidates:
        terms = each["terms"]
        rows.append(
            (
                each["name"],
                each["pool"],
                f"{each['cached_tokens']:,}",
                f"{1e3 * each['cost_s']:,.1f}" if each["cost_s"] is not None else "-",
                *(f"{1e3 * terms[name]:,.1f}" if terms else "-" for name, _ in _TERMS),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number < 2 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _headers(given: Sequence[str]) -> dict[str, str]:
    headers = {}
    for line in given:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name.strip()) or not _VALUE.fullmatch(value):
            raise AdminError(f"--header must be such as 'x-session-id: abc', got {line!r}")
        headers[name.strip()] = value.strip()
    return headers
