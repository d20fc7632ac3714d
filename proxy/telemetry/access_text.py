"""An access line for people: the same facts as in JSON, aligned, the most asked for first."""

from collections.abc import Mapping
from typing import Any, Final

# What follows with its name, if it is there.
_NAMED: Final = (
    "model",
    "waited_ms",
    "waits_for",
    "attempts",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "class",
    "reason",
    "degraded",
    "error",
    "trace_id",
)


def text_of(line: Mapping[str, Any]) -> bytes:
    """One line of text, of the fields of `access_line`. Nothing in them is a client's free text."""
    at = line["at"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    status, where = line["status"], line.get("backend") or "-"
    told = f"{at} {status} {_ms(line.get('duration_ms'))} {_ms(line.get('ttft_ms'))} {where:<12}"
    told += f" {line['tenant'] or line['client']:<15} {line['method'] or '-':<4}"
    told += f" {line['path'] or '-'}"
    for name in _NAMED:
        if line.get(name) is not None:
            told += f" {name}={line[name]}"
    if line.get("whole") is False:
        told += " whole=no"
    for each in line.get("failed", ()):
        told += f" failed={each['backend']}:{each['failure']}"
    return f"{told} id={line['request_id']}\n".encode()


def _ms(value: float | None) -> str:
    return f"{'-':>12}" if value is None else f"{value:>10.1f}ms"
