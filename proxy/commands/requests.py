"""`penstock requests`: recent requests as one table that says where their time went.

`penstock trace ID`: the same of one request, as a waterfall.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.proxy.commands.admin_client import add_arguments, client_of, show
from penstock.proxy.commands.plain_text import aligned
from penstock.proxy.commands.time_spent import (
    BACKEND,
    CLIENT,
    LINE,
    LOST,
    PENSTOCK,
    kind,
    mostly,
    result,
    seconds,
    sentences,
    spent_ms,
)

# The five after TOTAL add up to it.
_HEADS: Final = (
    "REQUEST",
    "TENANT",
    "BACKEND",
    "RESULT",
    "MOSTLY",
    "BEGAN",
    "FIRST TOKEN",
    "TOTAL",
    "CLIENT",
    "PENSTOCK",
    "IN LINE",
    "FAILED TRIES",
    "AT BACKEND",
)
_LEFT: Final = 5  # so many columns are aligned to the left


def add_requests(commands: Any) -> None:
    """Add the command and its arguments."""
    parser = commands.add_parser(
        "requests",
        help="show recent requests, and where their time went",
        epilog="Example: penstock requests --slow --tenant research; exit status 1 when the proxy "
        "does not answer.",
    )
    parser.add_argument("--slow", action="store_true", help="the slowest of the last minutes")
    parser.add_argument("--failed", action="store_true", help="only those that failed")
    parser.add_argument("--tenant", metavar="T", help="only requests of tenant T")
    parser.add_argument("--backend", metavar="B", help="only requests with an attempt at backend B")
    parser.add_argument("--limit", metavar="N", help="at most so many (default 50)")
    add_arguments(parser, requests, with_json=True)


def requests(parsed: argparse.Namespace) -> int:
    """Print the table, or JSON."""
    query = {name: "true" for name in ("slow", "failed") if getattr(parsed, name)}
    for name in ("tenant", "backend", "limit"):
        if getattr(parsed, name) is not None:
            query[name] = getattr(parsed, name)
    entries = client_of(parsed).listed("requests", query)
    none = "No failed request is kept." if parsed.failed else "No such request is kept."
    return show(parsed, entries, lambda entries: table(entries) if entries else none)


def table(entries: Sequence[Mapping[str, Any]]) -> str:
    """The table with aligned columns, and how to see more."""
    lines = aligned([_HEADS, *map(_row, entries)], _LEFT)
    return "\n".join([*lines, "", f"More on one: penstock trace {entries[0]['id']}"])


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    backend = entry["backend"] or "-"
    if entry["attempts"] > 1:
        backend += f" ({entry['attempts']} attempts)"
    columns = (CLIENT, PENSTOCK, LINE, LOST, BACKEND)
    return (
        entry["id"],
        entry["tenant"] or "-",
        backend,
        result(entry),
        mostly(entry),
        f"{entry['ago_s']:,.0f} s ago",
        seconds(entry["ttft_ms"]),
        seconds(entry["duration_ms"]),
        *(seconds(spent_ms(entry, names)) for names in columns),
    )


# A line of the waterfall has at most 80 columns: the label, the time and the bar.
LABEL_CHARS: Final = 31
BAR_CHARS: Final = 34

_LABELS: Final = {
    "receive": "client sends the request",
    "read": "penstock reads it",
    "choose": "penstock chooses a backend",
    "queue": "waits in penstock: {why}",
    "failed": "{backend} fails: {why}",
    "connect": "connecting to {backend}",
    "head": "until {backend} begins to answer",
    "answer": "{backend} computes the answer",
    "prefill": "queue and prefill at {backend}",
    "decode": "tokens of {backend}",
    "body": "answer's body of {backend}",
    "client": "client takes nothing",
    "end": "ending",
}


def add_trace(commands: Any) -> None:
    """Add the command and its arguments."""
    parser = commands.add_parser(
        "trace",
        help="show where the time of one request went",
        epilog="Example: penstock trace 0f3c9ab2; exit status 1 when no request with this id is "
        "kept, or the proxy does not answer.",
    )
    parser.add_argument("id", metavar="ID", type=_some_id, help="x-request-id of its answer")
    parser.add_argument("--tenant", metavar="T", help="only the request of tenant T")
    parser.add_argument("--before", metavar="TIME", help="only what began then or earlier")
    parser.add_argument(
        "--limit", metavar="N", help="at most N, if many used the id (default 50, up to 500)"
    )
    add_arguments(parser, trace, with_json=True)


def _some_id(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def trace(parsed: argparse.Namespace) -> int:
    """Print the waterfall of each request with this id, or JSON."""
    given = {"tenant": parsed.tenant, "before": parsed.before, "limit": parsed.limit}
    query = {name: value for name, value in given.items() if value is not None}
    entries = client_of(parsed).requests_with_id(parsed.id, query)
    return show(parsed, entries, lambda told: "\n\n".join([*map(text, told), *more(told)]))


def more(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many others used this id, and how to see theirs. Empty if nobody did."""
    left = entries[0]["same_id"] - len(entries)
    if left <= 0:
        return []
    oldest = max(entries, key=lambda entry: float(entry["ago_s"]))
    who = "1 more tenant or client" if left == 1 else f"{left} more tenants or clients"
    return [
        f"{who} used this id. To see more: --tenant T, --limit N (up to 500), or"
        f" --before {oldest['began']}"
    ]


def text(entry: Mapping[str, Any]) -> str:
    """What became of one request, the waterfall, and what took the time."""
    served = [
        (entry["trace_id"], "trace {}"),
        (entry["tenant"], "tenant {}"),
        (entry["class"], "class {}"),
        (entry["model"], "model {}"),
        (entry["pool"], "pool {}"),
        (entry["backend"], "backend {}"),
        (entry["reason"], "chosen by: {}"),
    ]
    told = [words.format(value) for value, words in served if value]
    if entry["attempts"] > 1:
        told.append(f"{entry['attempts']} attempts")
    lines = [f"{entry['id']}: {result(entry)}", f"  began {entry['began']}"]
    lines += [f"  {each}" for each in told]
    if tokens := _tokens(entry):
        lines.append(f"  {tokens}")
    total = f"  {seconds(entry['duration_ms'])} in all"
    if entry["ttft_ms"] is not None:
        total += f", first token after {seconds(entry['ttft_ms'])}"
    return "\n".join([*lines, total, "", *_bars(entry), "", *sentences(entry)]).rstrip()


def _tokens(entry: Mapping[str, Any]) -> str:
    if entry["prompt_tokens"] is None:
        return ""
    cached = entry["cached_tokens"]
    told = f" ({cached:,} cached)" if cached is not None else ""
    return (
        f"{entry['prompt_tokens']:,} prompt tokens{told},"
        f" {entry['completion_tokens']:,} completion tokens"
    )


def _bars(entry: Mapping[str, Any]) -> list[str]:
    """A line for each part, in the order in which they came."""
    total_ms = sum(part["ms"] for part in entry["parts"])
    lines, before_ms = [], 0.0
    for part in entry["parts"]:
        words = {"backend": part["backend"] or "-", "why": part["why"] or "-"}
        label = _LABELS[kind(entry, part)].format(**words)
        begin = min(BAR_CHARS - 1, round(BAR_CHARS * before_ms / total_ms)) if total_ms else 0
        before_ms += part["ms"]
        end = round(BAR_CHARS * before_ms / total_ms) if total_ms else 0
        bar = " " * begin + "#" * max(1, end - begin)
        if len(label) > LABEL_CHARS:
            label = label[: LABEL_CHARS - 3] + "..."
        lines.append(f"{label:<{LABEL_CHARS}} {seconds(part['ms']):>12} {bar}")
    return lines
