"""One peer under one workload: what its clients saw, where its requests went, what it used."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import uvloop

from bench import meter
from bench.peers.fleet import Fleet, Work
from bench.peers.peer import Running
from bench.peers.prompt import Prompt
from bench.peers.replay import Sample, faults, replay
from bench.routing.outcome import Outcome

# After a run: the engines finish what nobody waits for any more.
REST_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Cell:
    """Figures of one run; latencies in the engines' seconds."""

    figures: dict[str, float]
    shares: list[float]
    """Of the prompt tokens, each server's."""
    faults: dict[str, int]
    requests: int
    cpu_ms_per_request: float
    cpu_us_per_event: float


def measure(peer: Running, fleet: Fleet, prompts: Sequence[Prompt], speedup: float) -> Cell:
    """Play the prompts through a peer, with empty caches at the beginning."""
    fleet.forget()
    before, cpu_ns = fleet.work(), meter.cpu_ns(peer.pid)
    samples = uvloop.run(_play(peer.port, prompts, speedup))
    cpu_ns = meter.cpu_ns(peer.pid) - cpu_ns
    work = [now.since(then) for now, then in zip(fleet.work(), before, strict=True)]
    events = sum(sample.events for sample in samples)
    tokens = [each.prompt_tokens_total for each in work]
    return Cell(
        figures=_figures(samples, work, speedup),
        shares=[each / max(1, sum(tokens)) for each in tokens],
        faults=faults(samples),
        requests=len(samples),
        cpu_ms_per_request=cpu_ns / 1e6 / len(samples),
        cpu_us_per_event=cpu_ns / 1e3 / max(1, events),
    )


async def _play(port: int, prompts: Sequence[Prompt], speedup: float) -> list[Sample]:
    samples = await replay(port, prompts, speedup)
    await asyncio.sleep(REST_S)
    return samples


def _figures(samples: Sequence[Sample], work: Sequence[Work], speedup: float) -> dict[str, float]:
    """Under the names of the experiments; of whole answers only, but goodput is of all."""
    outcome = Outcome(len(work))
    for backend, each in enumerate(work):
        outcome.sent(backend, each.prompt_tokens_total + each.generation_tokens_total)
    whole = [sample for sample in samples if not sample.fault]
    for sample in whole:
        arrival = sample.prompt.arrival
        end_s = arrival.at_s + sample.end_s * speedup
        outcome.add(arrival, sample.ttft_s * speedup, end_s, 0)
        for gap_s in sample.gaps_s:
            outcome.gap(gap_s * speedup)
    if not whole:
        return {}
    queries = sum(each.cache_queries_total for each in work)
    figures = outcome.figures()
    figures["hit_rate"] = sum(each.cache_hits_total for each in work) / max(1, queries)
    figures["goodput"] *= len(whole) / len(samples)
    return figures
