"""One peer under one workload: what its clients saw, where its requests went, what it used.

Requests are played open loop: each at its time, however late the others are.
"""

import asyncio
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import Final

import uvloop

from penstock.bench import meter
from penstock.bench.client import Answer, Clients
from penstock.bench.overhead.answers import content_of
from penstock.bench.peers.fleet import Fleet
from penstock.bench.peers.peer import Running
from penstock.bench.peers.workload import Prompt
from penstock.bench.routing.outcome import Outcome, quantile

# Above this share of a core a process of one thread is behind; the peer's own latency is then that
# of a queue, and with the fleet's or the client's it is not the peer that is measured.
CORE_SHARE_MAX: Final = 0.85
LATE_MS_MAX: Final = 20.0
# Shorter prompts are those that others make wait.
SHORT_TOKENS: Final = 1_000
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
        whole = content_of(body) == sample.prompt.answer
        sample.fault = answer.fault or ("" if whole else "not whole")


@dataclass(frozen=True, slots=True)
class Cell:
    """Figures of one run; latencies in the engines' seconds."""

    figures: dict[str, float]
    shares: list[float]
    """Of the prompt tokens, each server's."""
    faults: dict[str, int]
    requests: int
    cpu_ms_per_request: float
    core_shares: dict[str, float]
    """Of one core, what `peer`, `fleet` and `client` used."""
    late_ms_p99: float
    """How late the client itself was."""
    short_ttft_s: list[float]
    """Of each whole answer to a prompt below SHORT_TOKENS, to be pooled over rounds."""

    @property
    def saturated(self) -> list[str]:
        """What was at its limit, in words."""
        found = [
            f"the {name} at {share:.0%} of a core"
            for name, share in self.core_shares.items()
            if share > CORE_SHARE_MAX
        ]
        if self.late_ms_p99 > LATE_MS_MAX:
            found.append(f"the client up to {self.late_ms_p99:.0f} ms late")
        return found


def measure(peer: Running, fleet: Fleet, prompts: Sequence[Prompt], speedup: float) -> Cell:
    """Play the prompts through a peer, before engines at rest with empty caches."""
    rested = fleet.fresh()
    pids = {"peer": peer.pid, "fleet": fleet.pid, "client": os.getpid()}
    work, before = fleet.work(), meter.read(pids)
    samples = uvloop.run(replay(peer.port, prompts, speedup))
    used = meter.read(pids).since(before)
    done = [
        {name: now[name] - then[name] for name in now}
        for now, then in zip(fleet.work(), work, strict=True)
    ]
    tokens = [each["prompt_tokens_total"] for each in done]
    faults = Counter(sample.fault for sample in samples if sample.fault)
    return Cell(
        figures=_figures(samples, done, speedup),
        shares=[each / max(1, sum(tokens)) for each in tokens],
        faults=faults | ({} if rested else {"engines at work before": 1}),
        requests=len(samples),
        cpu_ms_per_request=used.cpu_ns["peer"] / 1e6 / len(samples),
        core_shares={name: ns / 1e9 / used.window_s for name, ns in used.cpu_ns.items()},
        late_ms_p99=1e3 * quantile([sample.late_s for sample in samples], 0.99),
        short_ttft_s=[
            sample.ttft_s * speedup
            for sample in samples
            if not sample.fault and sample.prompt.arrival.prompt_tokens < SHORT_TOKENS
        ],
    )


def _figures(
    samples: Sequence[Sample], done: Sequence[Mapping[str, int]], speedup: float
) -> dict[str, float]:
    """Under the names of the experiments; of whole answers only, but goodput is of all."""
    outcome = Outcome(len(done))
    for backend, each in enumerate(done):
        outcome.sent(backend, each["prompt_tokens_total"] + each["generation_tokens_total"])
    whole = [sample for sample in samples if not sample.fault]
    for sample in whole:
        arrival = sample.prompt.arrival
        end_s = arrival.at_s + sample.end_s * speedup
        outcome.add(arrival, sample.ttft_s * speedup, end_s, 0)
        for gap_s in sample.gaps_s:
            outcome.gap(gap_s * speedup)
    if not whole:
        return {}
    queries, hits = (sum(each[f"cache_{of}_total"] for each in done) for of in ("queries", "hits"))
    figures = outcome.figures()
    figures["hit_rate"] = hits / max(1, queries)
    figures["goodput"] *= len(whole) / len(samples)
    return figures
