"""`penstock bench policies`: what counting tokens buys, over HTTP on simulated servers.

Poisson arrivals of unique prompts through a real penstock process, once per
policy with the same arrivals. Two mixes:

- `prefill`: 8 % of prompts have 20,000 tokens and the rest 300, prefilled one
  at a time at 10,000 tokens/s. What a short request waits for is whether a
  long one is ahead of it. Reported: TTFT of the short requests.
- `decode`: a tenth of the outputs have 2,000 tokens and the rest 10; a step
  slows with the streams in it. Reported: time to the last token, of all.

Times are in the engines' seconds: the run itself is `speedup` times faster.
"""

import argparse
import asyncio
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from random import Random
from typing import Final

import aiohttp
import uvloop

from balancing.policies import POLICIES
from bench.arguments import count, names, positive
from bench.peers.ours import start_penstock
from bench.peers.peer import url
from bench.processes import stop
from bench.routing.outcome import quantile
from bench.sim.profiles import Profile
from bench.sim.server import SimServer

BACKENDS: Final = 4
# The simulation counts four bytes a token.
TOKEN_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Mix:
    """A workload: kinds of requests as (share, prompt tokens, output tokens), and the engine."""

    name: str
    profile: Profile
    kinds: tuple[tuple[float, int, int], ...]
    requests_per_s: float
    reported: str

    def arrivals(self, seed: int, window_s: float) -> list[tuple[float, int, int]]:
        """(time, prompt tokens, output tokens) of every request; the seed decides all."""
        rng = Random(seed)
        shares = [share for share, _, _ in self.kinds]
        at_s, rows = 0.0, []
        while (at_s := at_s + rng.expovariate(self.requests_per_s)) < window_s:
            _, prompt, output = rng.choices(self.kinds, shares)[0]
            rows.append((at_s, prompt, output))
        return rows


MIXES: Final = {
    mix.name: mix
    for mix in (
        # Mean prompt 1,876 tokens; 4 x 10,000 tokens/s x 2/3 / 1,876 = 14.2 requests/s.
        Mix(
            "prefill",
            Profile("prefill", max_batched_tokens=2_048, serial_prefill=True),
            ((0.08, 20_000, 64), (0.92, 300, 64)),
            14.2,
            "short requests' TTFT",
        ),
        # A step of 20 ms + 2 ms a stream: 12 streams an engine are 273 tokens/s, and
        # 4 x 273 / 209 tokens = 5.2 requests/s keeps about that many open.
        Mix(
            "decode",
            Profile("decode", step_base_s=0.020, step_s_per_stream=0.002),
            ((0.10, 300, 2_000), (0.90, 300, 10)),
            5.0,
            "E2E latency",
        ),
    )
}


@dataclass(slots=True)
class Sample:
    """Latencies of one run, in engine seconds."""

    short_ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)
    errors: int = 0

    def reported(self, mix: Mix) -> list[float]:
        return self.short_ttft_s if mix.name == "prefill" else self.e2e_s


async def measure(mix: Mix, policy: str, seed: int, window_s: float, speedup: float) -> Sample:
    """One policy under one seed's arrivals: fresh servers, a fresh proxy."""
    servers = [
        SimServer(name=f"sim-{i}", profile=mix.profile, speedup=speedup) for i in range(BACKENDS)
    ]
    for server in servers:
        await server.start()
    try:
        ports = [server.port for server in servers]
        # In a thread: the servers that it waits for are on this loop.
        penstock = await asyncio.to_thread(start_penstock, ports, Path(), policy)
        try:
            return await _replay(mix, seed, window_s, speedup, penstock.port)
        finally:
            await asyncio.to_thread(stop, penstock.process)
    finally:
        for server in servers:
            await server.stop()


async def _replay(mix: Mix, seed: int, window_s: float, speedup: float, port: int) -> Sample:
    sample = Sample()
    endpoint = f"{url(port)}/v1/completions"
    began_s = time.monotonic()
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        asyncio.TaskGroup() as tasks,
    ):
        for number, (at_s, prompt, output) in enumerate(mix.arrivals(seed, window_s)):
            await asyncio.sleep(began_s + at_s / speedup - time.monotonic())
            # Unique from its first byte: nothing of it can be in any cache.
            text = f"{seed:04d} {number:06d} "
            text += "lorem ipsum " * (prompt * TOKEN_BYTES // 12)
            tasks.create_task(_request(session, endpoint, text, prompt, output, speedup, sample))
    return sample


async def _request(
    session: aiohttp.ClientSession,
    endpoint: str,
    text: str,
    prompt: int,
    output: int,
    speedup: float,
    sample: Sample,
) -> None:
    body = {"model": "sim-model", "prompt": text, "max_tokens": output, "stream": True}
    began_s = time.monotonic()
    first_s = None
    done = False
    async with session.post(endpoint, json=body) as answer:
        async for line in answer.content:
            if first_s is None and line.startswith(b"data:"):
                first_s = time.monotonic()
            done = done or line == b"data: [DONE]\n"
    if first_s is None or not done:
        sample.errors += 1
        return
    if prompt == 300:
        sample.short_ttft_s.append((first_s - began_s) * speedup)
    sample.e2e_s.append((time.monotonic() - began_s) * speedup)


def run(mix: Mix, policies: Sequence[str], seeds: int, window_s: float, speedup: float) -> int:
    """Run the comparison and print its table. Returns an exit status."""
    runs: dict[str, list[list[float]]] = {policy: [] for policy in policies}
    errors = 0
    for seed in range(seeds):
        for policy in policies:
            sample = uvloop.run(measure(mix, policy, seed, window_s, speedup))
            runs[policy].append(sample.reported(mix))
            errors += sample.errors
            print(f"seed {seed} {policy}: {len(sample.e2e_s)} requests", file=sys.stderr)
    print(f"{mix.reported}, pooled over {seeds} seeds of {window_s:g} s, {errors} errors\n")
    print(f"| policy | requests | mean s | p50 s | p99 s | mean / {policies[-1]}'s |")
    print("|---|---:|---:|---:|---:|---:|")
    for policy in policies:
        values = list(chain(*runs[policy]))
        p50, p99 = quantile(values, 0.5), quantile(values, 0.99)
        print(
            f"| {policy} | {len(values)} | {statistics.fmean(values):.3f} | {p50:.3f} | {p99:.3f} "
            f"| {_ratio(runs[policy], runs[policies[-1]])} |"
        )
    return 1 if errors else 0


def _ratio(mine: list[list[float]], others: list[list[float]]) -> str:
    """Pooled mean over pooled mean, and the standard error of the ratio over paired seeds."""
    pooled = statistics.fmean(chain(*mine)) / statistics.fmean(chain(*others))
    if len(mine) < 2 or mine is others:
        return f"{pooled:.3f}"
    pairs = zip(mine, others, strict=True)
    ratios = [statistics.fmean(one) / statistics.fmean(other) for one, other in pairs]
    return f"{pooled:.3f} ± {statistics.stdev(ratios) / len(ratios) ** 0.5:.3f}"


def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="penstock bench policies", description="What counting tokens buys, over HTTP."
    )
    parser.add_argument("--mix", choices=MIXES, default="prefill", help="workload")
    policies = names("policy", POLICIES)
    parser.add_argument(
        "--policies", type=policies, default="token_cost,least_tokens,least_requests,round_robin"
    )
    parser.add_argument("--seeds", type=count, default=10, help="runs of each policy (default 10)")
    parser.add_argument("--window-s", type=positive, default=100.0, help="of engine time (100)")
    parser.add_argument("--speedup", type=positive, default=10.0, help="engine over real time (10)")
    options = parser.parse_args(argv)
    command = shlex.join(["penstock", "bench", "policies", *argv])
    print(f"$ {command}\n")
    mix = MIXES[options.mix]
    return run(mix, options.policies, options.seeds, options.window_s, options.speedup)
