"""What requests wait for, in words: `penstock explain` and `penstock status` say the same."""

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
