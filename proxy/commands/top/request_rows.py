"""Recent slow and failed requests as rows."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from penstock.proxy.commands.time_spent import result
from penstock.proxy.commands.top.columns import Column, Told
from penstock.proxy.commands.top.figures import NONE, clock, count, milliseconds
from penstock.proxy.commands.top.line import Tone


def key_of(request: Told) -> tuple[str, str, float]:
    """Nobody can choose the id of another's request, but two may choose the same one."""
    return str(request["id"]), str(request["tenant"]), float(request["duration_ms"])


def sign_of(request: Told) -> str:
    """A `!` for one that failed."""
    return "!" if request["failed"] else ""


def _tone(request: Told) -> Tone:
    return "bad" if request["failed"] else ""


def _began(request: Told) -> str:
    return clock(datetime.fromisoformat(request["began"]).timestamp())


def _tokens(request: Told) -> str:
    prompt, answer = request["prompt_tokens"], request["completion_tokens"]
    return NONE if prompt is None else f"{count(prompt)}+{count(answer)}"


def columns_of(entries: Sequence[Told]) -> tuple[Column, ...]:
    """Those that say something: nobody may have a tenant."""
    if any(each["tenant"] for each in entries):
        return COLUMNS
    return tuple(each for each in COLUMNS if each.head != "TENANT")


COLUMNS: Final = (
    Column("BEGAN", _began, wide=8, text=True, tone=lambda request: "quiet"),
    Column("RESULT", result, wide=12, text=True, tone=_tone),
    Column("TENANT", lambda request: request["tenant"] or NONE, wide=8, text=True, rank=2),
    Column("MODEL", lambda request: request["model"] or NONE, wide=10, text=True, rank=1),
    Column("BACKEND", lambda request: request["backend"] or NONE, wide=10, text=True),
    Column("TRIES", lambda request: str(request["attempts"]), wide=5, rank=4),
    Column("TOKENS", _tokens, wide=11, rank=3),
    Column("FIRST", lambda request: milliseconds(request["ttft_ms"]), wide=7),
    Column("TOTAL", lambda request: milliseconds(request["duration_ms"]), wide=7),
    Column("ID", lambda request: str(request["id"]), wide=14, text=True, rank=5),
)
