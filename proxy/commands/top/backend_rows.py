"""The backends as rows: the columns, the order, and what the filter finds."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.proxy.commands.fleet_table import SLOWER_MIN, age, state_of
from penstock.proxy.commands.top.columns import Column, Told
from penstock.proxy.commands.top.figures import NONE, count, percent, seconds, told
from penstock.proxy.commands.top.line import Tone
from penstock.proxy.commands.top.natural_order import Key, natural

# How full a cache counts as full.
FULL: Final = 0.95
_TONES: Final[dict[str, Tone]] = {"ready": "good", "suspect": "warn", "warming": "warn"}


def key_of(backend: Told) -> tuple[str, str]:
    """What tells it from all others."""
    return str(backend["pool"]), str(backend["name"])


def ordered(
    backends: Sequence[Told], wanted: str, sorted_by: str | None, *, down: bool
) -> list[Told]:
    """Those whose name, pool or state has `wanted` in it. Without a column: the worst first."""
    words = wanted.casefold().split()
    fitting = [each for each in backends if _fits(each, words)]
    fitting.sort(key=lambda each: natural(str(each["name"])))
    column = _BY_HEAD.get(sorted_by or "")
    if column is None:
        fitting.sort(key=trouble)
        return fitting
    known = [each for each in fitting if column.value(each) is not None]
    known.sort(key=lambda each: _sortable(column.value(each)), reverse=down)
    return known + [each for each in fitting if column.value(each) is None]


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
    return {0: "!", 1: "!", 2: "~", 3: "-"}.get(trouble(backend), "")


def facts(backend: Told) -> list[str]:
    """All that is known of one, a line each, with what it means."""
    lines = [
        f"{column.head.lower():<10} {column.cell(backend):<12} {column.means}".rstrip()
        for column in COLUMNS
    ]
    last = backend["lately"]["last_failure"]
    if last:
        lines.append(f"{'last error':<10} {last['reason']}, {age(last['age_s'])} ago")
    return lines


def _fits(backend: Told, words: Sequence[str]) -> bool:
    if not words:
        return True
    text = f"{backend['name']} {backend['pool']} {state_of(backend)}".casefold()
    return all(word in text for word in words)


def _sortable(value: float | str | None) -> tuple[float, Key]:
    if isinstance(value, str):
        return 0.0, natural(value)
    return value or 0.0, ()


def _is_slow(backend: Told) -> bool:
    return (backend["slower"] or 0.0) >= SLOWER_MIN


def _is_full(backend: Told) -> bool:
    return (_of_engine("kv_usage")(backend) or 0.0) >= FULL


def _of_engine(name: str) -> Callable[[Told], float | None]:
    def value(backend: Told) -> float | None:
        engine: dict[str, Any] = backend["engine"] or {}
        return engine.get(name)

    return value


def _figure(
    head: str,
    wide: int,
    value: Callable[[Told], float | None],
    show: Callable[[float], str],
    means: str,
    rank: int = 0,
    bad: Callable[[Told], bool] = lambda backend: False,
) -> Column:
    """A column of one figure, which is told as a dash when it is not known."""
    return Column(
        head,
        cell=lambda backend: told(show, value(backend)),
        wide=wide,
        value=value,
        rank=rank,
        tone=lambda backend: "bad" if bad(backend) else "",
        means=means,
        descends=True,
    )


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


COLUMNS: Final = (
    Column(
        "BACKEND",
        cell=lambda backend: str(backend["name"]),
        wide=10,
        value=lambda backend: str(backend["name"]),
        text=True,
        tone=lambda backend: "strong",
    ),
    Column(
        "POOL",
        cell=lambda backend: str(backend["pool"]),
        wide=8,
        value=lambda backend: str(backend["pool"]),
        text=True,
        rank=9,
    ),
    Column("STATE", state_of, wide=13, value=state_of, text=True, tone=_state_tone),
    _figure(
        "SLOWER",
        7,
        lambda backend: backend["slower"] and max(1.0, backend["slower"]),
        "{:.1f}x".format,
        "times as long as its peers",
        bad=_is_slow,
    ),
    Column(
        "IN", _slow_in, wide=7, value=_slow_in, text=True, rank=10, means="what takes it longer"
    ),
    _figure(
        "TTFT95",
        7,
        lambda backend: backend["lately"]["ttft_p95_s"],
        seconds,
        "95% of its first tokens came within this time",
        rank=6,
    ),
    _figure("RUN", 5, _of_engine("running"), count, "requests that its engine runs", rank=2),
    _figure("WAIT", 5, _of_engine("waiting"), count, "requests that wait in its engine", rank=1),
    _figure(
        "QUEUED",
        7,
        lambda backend: backend["queued_prefill_tokens"],
        count,
        "prompt tokens that wait for their first token",
        rank=3,
    ),
    _figure(
        "HELD",
        6,
        lambda backend: backend["active_decode_tokens"],
        count,
        "tokens of requests past their first token",
        rank=5,
    ),
    _figure("KV", 4, _of_engine("kv_usage"), percent, "how full its KV cache is", bad=_is_full),
    _figure(
        "HITS",
        5,
        _of_engine("prefix_hit_rate"),
        percent,
        "share of prompt tokens found in its prefix cache",
        rank=7,
    ),
    Column(
        "ERRORS",
        cell=_errors,
        wide=6,
        value=lambda backend: backend["lately"]["failures"],
        text=True,
        tone=lambda backend: "bad" if backend["lately"]["failures"] else "",
        means="failed attempts of the last minutes",
        descends=True,
    ),
    _figure(
        "IN FLIGHT",
        9,
        lambda backend: backend["requests_in_flight"],
        count,
        "requests sent there that have not ended",
        rank=8,
    ),
)
_BY_HEAD: Final = {each.head: each for each in COLUMNS}
