"""The backends and the recent requests as rows: their columns, their order, what a filter finds."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from penstock.proxy.commands.fleet_table import SLOWER_MIN, age, state_of
from penstock.proxy.commands.time_spent import result
from penstock.proxy.commands.top.lines import (
    NONE,
    Column,
    Told,
    Tone,
    clock,
    count,
    percent,
    seconds,
    times,
)

# How full a cache counts as full.
FULL: Final = 0.95
# A longer number is compared as text: who has written it is not known.
_DIGITS_MAX: Final = 18
_TONES: Final[dict[str, Tone]] = {"ready": "good", "suspect": "warn", "warming": "warn"}
Key = tuple[tuple[int, int, str], ...]


def natural(name: str) -> Key:
    """A key to sort names by in which gpu-9 comes before gpu-10."""
    return tuple(
        (0, int(part), "") if part.isdecimal() and len(part) <= _DIGITS_MAX else (1, 0, part)
        for part in re.split(r"(\d+)", name.casefold())
        if part
    )


def backend_key(backend: Told) -> tuple[str, str]:
    """What tells it from all others."""
    return str(backend["pool"]), str(backend["name"])


def request_key(request: Told) -> tuple[str, str, float]:
    """Nobody can choose the id of another's request, but two may choose the same one."""
    return str(request["id"]), str(request["tenant"]), float(request["duration_ms"])


def ordered(
    backends: Sequence[Told], wanted: str, sorted_by: str | None, *, down: bool
) -> list[Told]:
    """Those whose name, pool or state has `wanted` in it. Without a column: the worst first."""
    words = wanted.casefold().split()
    texts = [f"{each['name']} {each['pool']} {state_of(each)}".casefold() for each in backends]
    found = [
        each
        for each, text in zip(backends, texts, strict=True)
        if all(word in text for word in words)
    ]
    found.sort(key=lambda each: natural(str(each["name"])))
    column = next((each for each in COLUMNS if each.head == sorted_by), None)
    if column is None:
        return sorted(found, key=trouble)
    known = [each for each in found if column.value(each) is not None]
    known.sort(key=lambda each: _sortable(column.value(each)), reverse=down)
    return known + [each for each in found if column.value(each) is None]


def _sortable(value: float | str) -> tuple[float, Key]:
    return (0.0, natural(value)) if isinstance(value, str) else (value, ())


def trouble(backend: Told) -> int:
    """Less for what an operator must see first. Steps, not figures: rows change places rarely."""
    wanted = backend["admin_state"] == "ready"
    if not backend["can_serve"]:
        return 0 if wanted else 3
    if backend["lately"]["failures"] or backend["state"] == "suspect" or backend.get("verdict"):
        return 1
    if _is_slow(backend) or _is_full(backend):
        return 2
    return 4 if wanted and backend["state"] == "ready" else 3


def sign_of(backend: Told) -> str:
    """One character that says the same."""
    return "!!~-"[trouble(backend) : trouble(backend) + 1]


def failed_sign(request: Told) -> str:
    """That of a request."""
    return "!" if request["failed"] else ""


def facts(backend: Told) -> list[str]:
    """All that is known of one, a line each, with what it means."""
    lines = [
        f"{column.head.lower():<10} {column.cell(backend):<12} {column.means}".rstrip()
        for column in COLUMNS
    ]
    if last := backend["lately"]["last_failure"]:
        lines.append(f"{'last error':<10} {last['reason']}, {age(last['age_s'])} ago")
    return lines


def request_columns(entries: Sequence[Told]) -> tuple[Column, ...]:
    """Those that say something: nobody may have a tenant."""
    with_tenants = any(each["tenant"] for each in entries)
    return tuple(each for each in REQUEST_COLUMNS if with_tenants or each.head != "TENANT")


def _is_slow(backend: Told) -> bool:
    return (backend["slower"] or 0.0) >= SLOWER_MIN


def _is_full(backend: Told) -> bool:
    return ((backend["engine"] or {}).get("kv_usage") or 0.0) >= FULL


def _slow_in(backend: Told) -> str:
    return str(backend["slower_in"] or NONE) if _is_slow(backend) else NONE


def _errors(backend: Told) -> str:
    failures, last = backend["lately"]["failures"], backend["lately"]["last_failure"]
    return f"{count(failures)} {last['reason']}" if failures and last else count(failures)


def _state_tone(backend: Told) -> Tone:
    if backend["removed"] or backend["admin_state"] != "ready":
        return "quiet"
    if backend["state"] == "ejected":
        return "bad"
    return "warn" if backend.get("verdict") else _TONES.get(backend["state"], "quiet")


def _tokens(request: Told) -> str:
    prompt, answer = request["prompt_tokens"], request["completion_tokens"]
    return NONE if prompt is None else f"{count(prompt)}+{count(answer)}"


def _at(name: str, section: str = "") -> Callable[[Told], Any]:
    """A figure of the backend, or of a section of it, which may be missing."""
    return lambda told: (told[section] or {}).get(name) if section else told[name]


def _word(name: str) -> Callable[[Told], str]:
    return lambda told: str(told[name] or NONE)


def _bad(holds: Callable[[Told], Any]) -> Callable[[Told], Tone]:
    return lambda told: "bad" if holds(told) else ""


def _slower(backend: Told) -> float | None:
    """One that is faster than its peers is not slower."""
    return None if backend["slower"] is None else max(1.0, backend["slower"])


_failures: Final = _at("failures", "lately")
COLUMNS: Final = (
    Column("BACKEND", 10, 0, _word("name"), tone=lambda backend: "strong", text=True),
    Column("POOL", 8, 9, _word("pool"), text=True),
    Column("STATE", 13, 0, state_of, tone=_state_tone, text=True),
    Column("SLOWER", 7, 0, _slower, times, "times as long as its peers", _bad(_is_slow)),
    Column("IN", 7, 10, _slow_in, means="what takes it longer", text=True),
    Column(
        *("TTFT95", 7, 6, _at("ttft_p95_s", "lately"), seconds),
        "95% of its first tokens came within this time",
    ),
    Column("RUN", 5, 2, _at("running", "engine"), count, "requests that its engine runs"),
    Column("WAIT", 5, 1, _at("waiting", "engine"), count, "requests that wait in its engine"),
    Column(
        *("QUEUED", 7, 3, _at("queued_prefill_tokens"), count),
        "prompt tokens that wait for their first token",
    ),
    Column(
        *("HELD", 6, 5, _at("active_decode_tokens"), count),
        "tokens of requests past their first token",
    ),
    Column(
        *("KV", 4, 0, _at("kv_usage", "engine"), percent),
        *("how full its KV cache is", _bad(_is_full)),
    ),
    Column(
        *("HITS", 5, 7, _at("prefix_hit_rate", "engine"), percent),
        "share of prompt tokens found in its prefix cache",
    ),
    Column(
        *("ERRORS", 6, 0, _failures, count),
        *("failed attempts of the last minutes", _bad(_failures), True, _errors),
    ),
    Column(
        *("IN FLIGHT", 9, 8, _at("requests_in_flight"), count),
        "requests sent there that have not ended",
    ),
)
REQUEST_COLUMNS: Final = (
    Column(
        *("BEGAN", 8, 0, lambda each: clock(began(each).timestamp())),
        tone=lambda each: "quiet",
        text=True,
    ),
    Column("RESULT", 12, 0, result, tone=_bad(_at("failed")), text=True),
    Column("TENANT", 8, 2, _word("tenant"), text=True),
    Column("MODEL", 10, 1, _word("model"), text=True),
    Column("BACKEND", 10, 0, _word("backend"), text=True),
    Column("TRIES", 5, 4, _at("attempts")),
    Column("TOKENS", 11, 3, _tokens),
    Column("FIRST", 7, 0, lambda each: seconds(each["ttft_ms"], 1e3)),
    Column("TOTAL", 7, 0, lambda each: seconds(each["duration_ms"], 1e3)),
    Column("ID", 14, 5, _word("id"), text=True),
)


def began(request: Told) -> datetime:
    """When a request began, as the admin port has rounded it."""
    return datetime.fromisoformat(request["began"])
