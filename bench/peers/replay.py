"""Plays requests through a proxy, open loop: each at its time, however late the others are."""

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import aiohttp

from bench.overhead.answers import content_of
from bench.peers.peer import url
from bench.peers.prompt import Prompt

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
    events: int = 0
    fault: str = ""


async def replay(port: int, prompts: Sequence[Prompt], speedup: float) -> list[Sample]:
    """Every request at its arrival's time, `speedup` times as fast; all answers, checked."""
    loads = [(prompt, prompt.body) for prompt in prompts]
    endpoint = f"{url(port)}/v1/chat/completions"
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        asyncio.TaskGroup() as group,
    ):
        began_s = monotonic()
        tasks = []
        for prompt, body in loads:
            due_s = began_s + prompt.arrival.at_s / speedup
            await asyncio.sleep(due_s - monotonic())
            tasks.append(group.create_task(_ask(session, endpoint, prompt, body, due_s)))
    answers = [task.result() for task in tasks]
    for sample, content in answers:  # afterwards: it would take the time of those still open
        if not sample.fault and content_of(content) != sample.prompt.answer:
            sample.fault = "not whole"
    return [sample for sample, _ in answers]


async def _ask(
    session: aiohttp.ClientSession, endpoint: str, prompt: Prompt, body: bytes, due_s: float
) -> tuple[Sample, bytes]:
    """One request, timed from when it was due, so that a client that is late shows."""
    sample = Sample(prompt, late_s=monotonic() - due_s)
    parts: list[bytes] = []
    last_s = due_s
    try:
        async with session.post(endpoint, data=body, headers=prompt.headers) as answer:
            if answer.status != 200:
                sample.fault = f"status {answer.status}"
            async for data in answer.content.iter_any():
                now_s = monotonic()
                parts.append(data)
                events = data.count(b"\n\n")
                sample.events += events
                if sample.ttft_s:
                    # Events that come together have no time between them.
                    sample.gaps_s += [now_s - last_s, *[0.0] * (events - 1)]
                elif _TEXT.search(b"".join(parts)):
                    sample.ttft_s = now_s - due_s
                last_s = now_s
    except (aiohttp.ClientError, TimeoutError) as error:
        sample.fault = type(error).__name__
    sample.end_s = last_s - due_s
    return sample, b"".join(parts)


def faults(samples: Sequence[Sample]) -> dict[str, int]:
    """How many answers were not whole, by what was wrong."""
    return dict(Counter(sample.fault for sample in samples if sample.fault))
