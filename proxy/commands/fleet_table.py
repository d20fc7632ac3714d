"""The table of `penstock status`: a row for each backend, what is in trouble first.

What nobody has told is "-". On a narrow terminal the least useful columns are left out, and then
texts are cut: no row is wrapped.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.proxy.commands.plain_text import cut

Told = Mapping[str, Any]
UNKNOWN: Final = "-"
GAP: Final = 2
# Of a cut text so many characters are left at least.
TEXT_CHARS_MIN: Final = 12
# Less is no difference that matters.
SLOWER_MIN: Final = 1.5


class Column(NamedTuple):
    """`text`: it is aligned to the left, and may be cut."""

    head: str
    cell: Callable[[Told], str]
    text: bool = False


def table(backends: Sequence[Told], width: int = 0) -> str:
    """The table, no wider than `width` characters if that is possible. 0: as wide as it is."""
    ordered = sorted(backends, key=_trouble)
    cells = {each.head: [each.head, *map(each.cell, ordered)] for each in COLUMNS}
    gap = GAP
    if 0 < width < _width(cells, gap):
        gap = 1
        untold = {head for head, column in cells.items() if set(column[1:]) == {UNKNOWN}}
        useless = [head for head in (*_LEAST_FIRST, *cells) if head in untold]
        for head in (*_LEAST_FIRST[:3], *useless, *_LEAST_FIRST):
            if _width(cells, gap) > width:
                cells.pop(head, None)
        for head in ("LAST ERROR", "BACKEND", "STATE"):
            _cut(cells, head, _width(cells, gap) - width)
    columns = []
    for head, column in cells.items():
        wide = max(map(len, column))
        left = _BY_HEAD[head].text
        columns.append([cell.ljust(wide) if left else cell.rjust(wide) for cell in column])
    return "\n".join((" " * gap).join(row).rstrip() for row in zip(*columns, strict=True))


def age(seconds: float) -> str:
    """A time that has passed, in its largest unit."""
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)} {unit}"
    return f"{int(seconds)} s"


def _width(cells: Mapping[str, Sequence[str]], gap: int) -> int:
    return sum(max(map(len, column)) for column in cells.values()) + gap * (len(cells) - 1)


def _cut(cells: dict[str, list[str]], head: str, excess: int) -> None:
    if excess <= 0 or head not in cells:
        return
    most = max(TEXT_CHARS_MIN, max(map(len, cells[head])) - excess)
    cells[head] = [cut(cell, most) for cell in cells[head]]


def _trouble(backend: Told) -> int:
    """Less for what an operator must see first."""
    if not backend["can_serve"]:
        return 0
    doubted = backend["state"] == "suspect" or backend.get("verdict")
    return 1 if _lately(backend).get("failures") or doubted else 2


def state_of(backend: Told) -> str:
    """What is wanted of it, then what is known of it."""
    wanted = "removed" if backend["removed"] else backend["admin_state"]
    if wanted == "maint":
        return "maint"  # it is not probed
    state = backend["state"]
    if backend["reason"]:
        state += f" ({backend['reason']})"
    elif state == "warming":
        state += f" ({backend['share']:.0%})"
    newcomer = backend.get("newcomer")
    fresh = "new" if newcomer and newcomer["stage"] != "worse" else "ready"
    out = not backend["can_serve"] or state.startswith("ejected")
    said = None if out else backend.get("verdict")  # else the state says more
    parts = [part for part in (wanted, state, fresh, said or "ready") if part != "ready"]
    return ", ".join(parts) or "ready"


def _kv(backend: Told) -> str:
    engine = _engine(backend)
    return f"{engine['kv_usage']:.0%}" if engine.get("kv_told") else UNKNOWN


def _last_error(backend: Told) -> str:
    last = _lately(backend).get("last_failure")
    return f"{last['reason']} {age(last['age_s'])} ago" if last else UNKNOWN


def _slower(backend: Told) -> str:
    """How many times as long as its peers, and in what."""
    times, work = backend.get("slower"), backend.get("slower_in")
    if times is None or times < SLOWER_MIN or work is None:
        return _as("{:.1f}x", times and max(1.0, times))  # less: it is faster
    return f"{times:.1f}x {work}"


def _hits(backend: Told) -> str:
    return _as("{:.0%}", _engine(backend).get("prefix_hit_rate"))


def _engine(backend: Told) -> Told:
    """What its engine told lately. Empty if nothing."""
    engine: Told = backend["engine"] or {}
    return engine if engine.get("fresh") else {}


def _lately(backend: Told) -> Told:
    """Its last minutes. Empty if the proxy is of an older version."""
    lately: Told = backend.get("lately") or {}
    return lately


def _as(words: str, value: float | None) -> str:
    return words.format(value) if value is not None else UNKNOWN


COLUMNS: Final = (
    Column("BACKEND", lambda each: str(each["name"]), text=True),
    Column("POOL", lambda each: str(each["pool"]), text=True),
    Column("STATE", state_of, text=True),
    Column("KV", _kv),
    Column("RUN", lambda each: _as("{:,}", _engine(each).get("running"))),
    Column("WAIT", lambda each: _as("{:,}", _engine(each).get("waiting"))),
    Column("TTFT P95", lambda each: _as("{:.2f} s", _lately(each).get("ttft_p95_s"))),
    Column("MS/TOKEN", lambda each: _as("{:.1f}", each.get("token_ms"))),
    Column("SLOWER", _slower),
    Column("HITS", _hits),
    Column("FAILED", lambda each: _as("{:,}", _lately(each).get("failures"))),
    Column("IN FLIGHT", lambda each: f"{each['requests_in_flight']:,}"),
    Column("QUEUED TOKENS", lambda each: f"{each['queued_prefill_tokens']:,}"),
    Column("HELD TOKENS", lambda each: f"{each['active_decode_tokens']:,}"),
    Column("LAST ERROR", _last_error, text=True),
)
_BY_HEAD: Final = {each.head: each for each in COLUMNS}
_LEAST_FIRST: Final = (
    *("HELD TOKENS", "QUEUED TOKENS", "IN FLIGHT"),
    *("HITS", "POOL", "MS/TOKEN", "SLOWER", "RUN"),
)
