"""Where the time of a request went, in words, for `penstock requests` and `penstock trace`.

An entry is one of `/api/v1/requests`.
"""

from collections.abc import Mapping
from typing import Any, Final

from penstock.proxy.commands.waits import WAITED

# Each part, as a sentence says it. `{backend}`: where.
SPENT: Final = {
    "receive": "its client sent the request",
    "read": "penstock read the request",
    "choose": "penstock chose a backend",
    "queue": "it waited in penstock",
    "failed": "an attempt at {backend} failed",
    "connect": "penstock connected to {backend}",
    "head": "{backend} had not begun the answer",
    "answer": "{backend} computed the answer",
    "prefill": "{backend} had it in its queue or in prefill",
    "decode": "it waited for more tokens of {backend}",
    "body": "{backend} sent the answer",
    "client": "its client did not take the answer",
    "end": "it was being ended",
}
# The same, as short as a column needs it.
MOSTLY: Final = {
    "receive": "client sent slowly",
    "read": "reading the body",
    "choose": "choosing",
    "queue": "waiting in line",
    "failed": "failed attempt",
    "connect": "connecting",
    "head": "before the answer",
    "answer": "computing the answer",
    "prefill": "queue and prefill",
    "decode": "tokens",
    "body": "answer's body",
    "client": "client read slowly",
    "end": "ending",
}
# Which parts a column of `penstock requests` adds up. All columns together are all of the time.
CLIENT: Final = ("receive", "client")
PENSTOCK: Final = ("read", "choose", "end")
LINE: Final = ("queue",)
LOST: Final = ("failed",)
BACKEND: Final = ("connect", "head", "prefill", "decode", "body")


def spent_ms(entry: Mapping[str, Any], names: tuple[str, ...]) -> float:
    """The time of these parts, in milliseconds."""
    return float(sum(part["ms"] for part in entry["parts"] if part["part"] in names))


def kind(entry: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    """Which words a part has: the head of a plain answer comes when all of it is computed."""
    return "answer" if part["part"] == "head" and not entry["stream"] else str(part["part"])


def longest(entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Its longest part. None: it took no time."""
    return max(entry["parts"], key=lambda part: part["ms"], default=None)


def seconds(ms: float | None) -> str:
    """As people read it."""
    return "-" if ms is None else f"{ms / 1000:,.3f} s"


def is_behind(entry: Mapping[str, Any]) -> bool:
    """Whether its client did not take what came for more than half of the time."""
    return bool(2 * entry["client_behind_ms"] > entry["duration_ms"])


def _at_once(entry: Mapping[str, Any]) -> bool:
    """Whether it was refused within a millisecond, and before a backend was chosen."""
    return bool(entry["error"] and not entry["backend"] and entry["duration_ms"] < 1.0)


def mostly(entry: Mapping[str, Any]) -> str:
    """What took most of its time, for a column."""
    if _at_once(entry):
        return "refused at once"
    part = longest(entry)
    if part is None:
        return "-"
    if is_behind(entry):
        return MOSTLY["client"]
    words = MOSTLY[kind(entry, part)]
    return f"{words} ({part['why']})" if part["why"] else words


def sentences(entry: Mapping[str, Any]) -> list[str]:
    """What took most of its time, and how it failed."""
    lines = []
    part = longest(entry)
    if part is not None and entry["duration_ms"] and not _at_once(entry):
        words = SPENT[kind(entry, part)].format(backend=part["backend"])
        if part["part"] == "queue":
            words += f": {WAITED.get(part['why'], part['why'])}"
        share = part["ms"] / entry["duration_ms"]
        lines.append(f"For {seconds(part['ms'])} of it ({share:.0%}) {words}.")
    if entry["client_behind_ms"]:
        behind = seconds(entry["client_behind_ms"])
        lines.append(f"For {behind} its client was behind: it had not taken what had come for it.")
    lines += [
        f"The attempt at {each['backend']} failed: {each['failure']}." for each in entry["failures"]
    ]
    if not entry["failed"]:
        return lines
    if entry["error"]:
        own = f"own error {entry['status']}" if entry["status"] >= 400 else "error event"
        lines.append(f"It ended with penstock's {own} {entry['error']}.")
    elif entry["status"] == 499:
        lines.append("Its client left before the answer began.")
    elif entry["status"] >= 400:
        lines.append(f"The backend answered with the error {entry['status']}.")
    else:
        lines.append("Its client did not get the whole answer: it left, or was disconnected.")
    return lines


def result(entry: Mapping[str, Any]) -> str:
    """The outcome in two words at most."""
    if entry["state"] == "running":
        return "running"
    if entry["error"]:
        return f"{entry['status']} {entry['error']}"
    cut = not entry["whole"] and entry["status"] < 400
    return f"{entry['status']} cut" if cut else f"{entry['status']}"
