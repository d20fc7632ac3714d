"""What requests wait for, and where their time went, in words: all commands say the same.

An entry is one of `/api/v1/requests`.
"""

from collections.abc import Mapping
from typing import Any, Final

WORDS: Final = {
    "prompts": "{backend} still has other prompts to prefill.",
    "sequences": "{backend} runs as many streams as it can.",
    "kv_cache": "The KV cache of {backend} has no room for its prompt and the expected answer.",
    "requests": "{backend} or its pool has as many requests as it may have.",
    "busy": "{backend} refuses requests for load (429 or 503).",
    "share": "The rest of {backend} is left to other tenants and higher classes.",
    "large": "Its prompt takes long, and others send requests too, or have streams at {backend}.",
    "choices": "Its choices may fill an engine, and enough such requests run.",
    "class": "A request of a higher class goes first.",
    "turn": "Others go first.",
    "backend": "No backend can serve it now.",
    "adapter": "A backend loads its adapter first.",
}


# The same of a wait that is over.
WAITED: Final = {
    "prompts": "the backend still had other prompts to prefill",
    "sequences": "the backend ran as many streams as it could",
    "kv_cache": "the KV cache had no room",
    "requests": "the backend or its pool had all the requests that it may have",
    "busy": "the backend refused requests for load (429 or 503)",
    "share": "the rest of the backend was left to other tenants and higher classes",
    "large": "its prompt took long, and others sent requests too, or had streams there",
    "choices": "its choices may fill an engine, and enough such requests ran",
    "class": "a request of a higher class went first",
    "turn": "others went first",
    "backend": "no backend could serve",
    "adapter": "a backend loaded its adapter",
}


def reason(told: Mapping[str, Any]) -> str:
    """Why one waits, of an entry with `waits_for` and `backend`."""
    word = told["waits_for"]
    return WORDS.get(word, f"{word}.").format(backend=told["backend"])


def heads_of(queue: Mapping[str, Any]) -> list[str]:
    """A line for each class in which something waits, on the next one: of `/api/v1/queue`."""
    lines = []
    for each in queue["classes"]:
        head = each["next"]
        if head is not None:
            whose = f" of {head['tenant']}" if head["tenant"] else ""
            lines.append(
                f"  {each['name']}: the next one{whose} has waited {head['waited_s']:.1f} s"
                f" (predicted {head['predicted_s']:.1f} s, deadline {head['deadline_s']:.0f} s)."
                f" {reason(head)}"
            )
    return lines


def prospect(told: Mapping[str, Any]) -> list[str]:
    """What would become of a request: of `admission` in an explanation."""
    name = told["class"]
    if told["outcome"] == "at_once":
        return [f"In the class {name} it would be sent at once."]
    lines = []
    if told["outcome"] == "wait" and told["waits_for"] in ("backend", "adapter", "busy"):
        longest_s = told["allowed_s"]
        lines.append(f"In the class {name} it would wait, for {longest_s:.0f} s at most.")
    elif told["outcome"] == "wait":
        lines.append(
            f"In the class {name} it would wait: first token in about {told['predicted_s']:.1f} s,"
            f" deadline {told['deadline_s']:.0f} s."
        )
    else:
        error = told["error"]
        after = error["headers"].get("retry-after")
        hint = f", Retry-After {after}" if after else ""
        lines.append(
            f"In the class {name} it would be refused: {error['status']} {error['code']}{hint}."
        )
        lines.append(f"  {error['message']}")
    if "waits_for" in told:
        lines.append(f"  {reason(told)}")
        lines += [f"  Before it: {_ahead(each)}" for each in told["ahead"]]
    return lines


def _ahead(ahead: Mapping[str, Any]) -> str:
    requests, tenants = ahead["requests"], ahead["tenants"]
    return (
        f"{requests:,} request{'s' * (requests != 1)} of the class {ahead['class']},"
        f" {ahead['tokens']:,} tokens, of {tenants:,} tenant{'s' * (tenants != 1)}."
    )


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
