"""Plays requests through a proxy, open loop: each at its time, however late the others are."""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Final

from penstock.bench.client import Answer, Clients
from penstock.bench.overhead.answers import content_of
from penstock.bench.peers.prompt import Prompt

# Of the run's own time, past which an answer is given up.
ANSWER_S: Final = 60.0
# The first event that has text: the one before it may hold the role only.
_TEXT: Final = re.compile(rb'"content": ?"[^"]')


@dataclass(slots=True)
class Sample:
    """One answer, in seconds of the run's own time."""

    prompt: Prompt
    late_s: float = 0.0
    """How long after it was due the client sent it."""
    ttft_s: float = 0.0
    end_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    fault: str = ""


async def replay(port: int, prompts: Sequence[Prompt], speedup: float) -> list[Sample]:
    """Every request at its arrival's time, `speedup` times as fast; all answers, checked."""
    loads = [(prompt, prompt.raw) for prompt in prompts]
    clients = Clients(port)
    async with asyncio.TaskGroup() as group:
        began_s = monotonic()
        tasks = []
        for prompt, raw in loads:
            due_s = began_s + prompt.arrival.at_s / speedup
            await asyncio.sleep(due_s - monotonic())
            tasks.append((due_s, group.create_task(_ask(clients, prompt, raw, due_s))))
    clients.close()
    for due_s, task in tasks:  # afterwards: it would take the time of those still open
        look_at(*task.result(), due_s)
    return [task.result()[0] for _, task in tasks]


async def _ask(clients: Clients, prompt: Prompt, raw: bytes, due_s: float) -> tuple[Sample, Answer]:
    sample = Sample(prompt, late_s=monotonic() - due_s)
    try:
        async with asyncio.timeout(ANSWER_S):
            return sample, await clients.ask(raw)
    except OSError as error:  # a timeout too
        sample.fault = type(error).__name__
        return sample, Answer()


def look_at(sample: Sample, answer: Answer, due_s: float) -> None:
    """What an answer was worth, timed from when it was due, so that a client that is late shows."""
    body = bytes(answer.body)
    text = _TEXT.search(body)
    text_end = text.end() if text else inf
    seen, last_s = 0, due_s
    for read_s, size in answer.reads:
        if sample.ttft_s:
            # Events that come together have no time between them.
            sample.gaps_s += [read_s - last_s, *[0.0] * (body.count(b"\n\n", seen, size) - 1)]
        elif size >= text_end:
            sample.ttft_s = read_s - due_s
        seen, last_s = size, read_s
    sample.end_s = last_s - due_s
    if not sample.fault:
        sample.fault = _fault(sample.prompt, answer, body)


def _fault(prompt: Prompt, answer: Answer, body: bytes) -> str:
    if answer.status != 200:
        return f"status {answer.status}" if answer.status else "no answer"
    if not answer.ended:
        return "cut"
    return "" if content_of(body) == prompt.answer else "not whole"


def faults(samples: Sequence[Sample]) -> dict[str, int]:
    """How many answers were not whole, by what was wrong."""
    return dict(Counter(sample.fault for sample in samples if sample.fault))
