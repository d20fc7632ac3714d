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
from bench.peers.prompt import Prompt

# Of the run's own time, past which an answer is given up.
ANSWER_S: Final = 60.0
# The first event that has text: the one before it may hold the role only.
_TEXT: Final = re.compile(rb'"content": ?"[^"]')


@dataclass(slots=True)
class Sample:
    """One answer, in seconds of the run's own time."""

    prompt: Prompt
    ttft_s: float = 0.0
    end_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    events: int = 0
    fault: str = ""


async def replay(port: int, prompts: Sequence[Prompt], speedup: float) -> list[Sample]:
    """Every request at its arrival's time, `speedup` times as fast; all answers, checked."""
    loads = [(prompt, prompt.body) for prompt in prompts]
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        asyncio.TaskGroup() as group,
    ):
        began_s = monotonic()
        tasks = []
        for prompt, body in loads:
            await asyncio.sleep(began_s + prompt.arrival.at_s / speedup - monotonic())
            tasks.append(group.create_task(_ask(session, url, prompt, body)))
    answers = [task.result() for task in tasks]
    for sample, content in answers:  # afterwards: it would take the time of those still open
        if not sample.fault and content_of(content) != sample.prompt.answer:
            sample.fault = "not whole"
    return [sample for sample, _ in answers]


async def _ask(
    session: aiohttp.ClientSession, url: str, prompt: Prompt, body: bytes
) -> tuple[Sample, bytes]:
    sample = Sample(prompt)
    parts: list[bytes] = []
    began_s = last_s = monotonic()
    try:
        async with session.post(url, data=body, headers=prompt.headers) as answer:
            if answer.status != 200:
                sample.fault = f"status {answer.status}"
            async for data in answer.content.iter_any():
                now_s = monotonic()
                parts.append(data)
                sample.events += data.count(b"\n\n")
                if sample.ttft_s:
                    sample.gaps_s.append(now_s - last_s)
                elif _TEXT.search(data):
                    sample.ttft_s = now_s - began_s
                last_s = now_s
    except (aiohttp.ClientError, TimeoutError) as error:
        sample.fault = type(error).__name__
    sample.end_s = last_s - began_s
    return sample, b"".join(parts)


def faults(samples: Sequence[Sample]) -> dict[str, int]:
    """How many answers were not whole, by what was wrong."""
    return dict(Counter(sample.fault for sample in samples if sample.fault))
