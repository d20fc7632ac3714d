"""`penstock bench engine`: how like a real vLLM the simulated engine is.

The same requests, in tokens and in what they share, go to a vLLM server and to a simulated one
of its size whose speed was fitted to it, and what the two say of themselves in /metrics is laid
side by side:

- `burst`: more than the KV cache holds at once. Preemptions, how many ran and waited, and in
  which order the answers ended.
- `prefixes`: one request after the other, beginnings in common, more of them than the cache holds.
  Nothing is left to time, so the hits should be the same to the token.
- `open`: Poisson arrivals at some two thirds of what the server can do. Latencies too.
"""

import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import correlation, fmean, median
from time import monotonic
from typing import Any, Final

import orjson
import uvloop

from penstock.bench.arguments import count, option
from penstock.bench.client import METRICS, Clients, get, post, samples
from penstock.bench.report import BenchError, head, row, say
from penstock.bench.routing.trace import random_times
from penstock.bench.sim.profiles import Profile
from penstock.bench.sim.server import SimServer

SAMPLE_S: Final = 0.1
RUN_S: Final = 600.0
SIM_MODEL: Final = "sim-model"
# Numbers of requests are their text: no two loads have one in common.
BURST: Final = 10_000
OPEN: Final = 20_000


_METRICS: Final = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "tokens": "vllm:generation_tokens_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
    "queries": "vllm:prefix_cache_queries_total",
    "hits": "vllm:prefix_cache_hits_total",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Prompts of the same `group` begin with the same `shared_tokens`."""

    number: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    group: int = -1
    shared_tokens: int = 0

    def words(self) -> list[int]:
        """Its tokens, as numbers below 2**12 that say which are the same."""
        shared, own = Random(f"group {self.group}"), Random(f"request {self.number}")
        head = [shared.randrange(16, 4_000) for _ in range(self.shared_tokens)]
        return head + [own.randrange(16, 4_000) for _ in range(self.prompt_tokens - len(head))]


def text_of(request: Request) -> str:
    """The prompt for a simulated one, which counts four bytes a token."""
    return "".join(f"{word:04d}" for word in request.words())


def burst(rng: Random) -> list[Request]:
    return [
        Request(BURST + n, n * 0.002, rng.randint(64, 1_400), rng.randint(16, 400))
        for n in range(64)
    ]


def prefixes(rng: Random) -> list[Request]:
    weights = [1.0 / rank for rank in range(1, 97)]
    groups = rng.choices(range(96), weights, k=240)
    return [
        Request(n, 0.0, 512 + rng.randint(20, 120), 4, group, 512) for n, group in enumerate(groups)
    ]


def poisson(rng: Random, per_s: float, length_s: float) -> list[Request]:
    return [
        Request(OPEN + number, at_s, rng.randint(50, 800), rng.randint(10, 100))
        for number, at_s in enumerate(random_times(length_s, per_s, rng))
    ]


class NotLikeVllm(BenchError):
    """The server does not answer as vLLM does; the text is what it said."""


@dataclass(slots=True)
class Run:
    """What one server did with the requests."""

    ended: list[int] = field(default_factory=list)
    ttft_s: dict[int, float] = field(default_factory=dict)
    e2e_s: dict[int, float] = field(default_factory=dict)
    samples: list[dict[str, float]] = field(default_factory=list)
    """Of /metrics, every SAMPLE_S; counters since the beginning of the run."""


class Server:
    """A server under one URL, real or simulated."""

    def __init__(self, url: str, model: str, prompt_of: Callable[[Request], Any]) -> None:
        self._url = url
        self._model = model
        self._prompt_of = prompt_of

    async def metrics(self, clients: Clients) -> dict[str, float]:
        said = samples((await clients.ask(get(METRICS))).body)
        return {
            key: sum(value for sample, value in said.items() if sample.startswith(name + "{"))
            for key, name in _METRICS.items()
        }

    async def run(self, requests: Sequence[Request], *, one_by_one: bool = False) -> Run:
        """Send all at their times, or each when the one before has its answer."""
        run = Run()
        clients = Clients.of(self._url)
        async with asyncio.timeout(RUN_S):
            # With VLLM_SERVER_DEV_MODE=1; elsewhere 404, and then no request here is like another.
            await clients.ask(post("/reset_prefix_cache", b""))
            before = await self.metrics(clients)
            sampler = asyncio.create_task(self._sample(clients, run, before))
            if one_by_one:
                for request in requests:
                    await self._ask(clients, request, run)
            else:
                await asyncio.gather(
                    *(self._ask(clients, request, run, wait=True) for request in requests)
                )
            sampler.cancel()
            after = await self.metrics(clients)
        clients.close()
        run.samples.append({key: after[key] - before[key] for key in _METRICS})
        return run

    async def _sample(self, clients: Clients, run: Run, before: dict[str, float]) -> None:
        while True:
            now = await self.metrics(clients)
            run.samples.append(
                {k: v if k in ("running", "waiting") else v - before[k] for k, v in now.items()}
            )
            await asyncio.sleep(SAMPLE_S)

    async def _ask(
        self, clients: Clients, request: Request, run: Run, *, wait: bool = False
    ) -> None:
        if wait:
            await asyncio.sleep(request.at_s)
        tokens = request.output_tokens
        body = {"model": self._model, "prompt": self._prompt_of(request), "max_tokens": tokens}
        body |= {"stream": True, "ignore_eos": True, "temperature": 0.0}
        began_s = monotonic()
        answer = await clients.ask(post("/v1/completions", orjson.dumps(body)))
        if answer.fault or not answer.reads:
            raise NotLikeVllm(f"{answer.status}: {bytes(answer.body[:200])!r}")
        run.ttft_s[request.number] = answer.reads[0][0] - began_s
        run.e2e_s[request.number] = monotonic() - began_s
        run.ended.append(request.number)


async def fitted(real: Server, profile: Profile) -> Profile:
    """The profile with the server's own speed: its step, a stream, a prefill, its API server."""
    await real.run([Request(9_000, 0.0, 16, 8)])  # warm
    # Five, of which one may come in one piece where somebody else has the machine meanwhile.
    alone = await real.run([Request(9_010 + n, 0.0, 16, 150) for n in range(5)], one_by_one=True)
    many = await real.run([Request(9_100 + n, 0.0, 16, 150) for n in range(32)])
    short = await real.run([Request(9_200 + n, 0.0, 16, 1) for n in range(9)], one_by_one=True)
    long = await real.run([Request(9_300 + n, 0.0, 1_900, 1) for n in range(9)], one_by_one=True)
    step_s, wide_s = (
        median(run.e2e_s[n] - run.ttft_s[n] for n in run.e2e_s) / 149 for run in (alone, many)
    )
    short_s, long_s = (median(run.e2e_s.values()) for run in (short, long))
    return replace(
        profile,
        prefill_tokens_per_s=(1_900 - 16) / max(long_s - short_s, 1e-4),
        step_base_s=step_s,
        step_s_per_stream=max(0.0, (wide_s - step_s) / 31),
        prefix_caching=True,
        api_s=max(0.0, short_s - step_s),
    )


async def size_of(url: str, seqs: int, batched: int) -> tuple[str, Profile]:
    """The model's name, and a profile of the server's size from what it says of itself."""
    clients = Clients.of(url)
    card = orjson.loads((await clients.ask(get("/v1/models"))).body)["data"][0]
    said = samples((await clients.ask(get(METRICS))).body)
    clients.close()
    about = next((name for name in said if name.startswith("vllm:cache_config_info{")), None)
    if about is None:
        raise NotLikeVllm("its /metrics has no vllm:cache_config_info")
    labels = dict(pair.split("=", 1) for pair in about[about.index("{") + 1 : -2].split('",'))
    config = {name: value.strip('"') for name, value in labels.items()}
    block = int(config["block_size"])
    # One block is vLLM's own, the null block.
    kv_tokens = (int(config["num_gpu_blocks"]) - 1) * block
    profile = Profile(
        "like it",
        max_batched_tokens=batched,
        max_num_seqs=seqs,
        kv_tokens=kv_tokens,
        block_tokens=block,
        max_model_len=int(card["max_model_len"]),
    )
    return str(card["id"]), profile


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    real: float
    simulated: float
    digits: int = 0

    def __str__(self) -> str:
        ratio = f"{self.simulated / self.real:.2f}" if self.real else "-"
        digits = self.digits
        return row(self.what, f"{self.real:,.{digits}f}", f"{self.simulated:,.{digits}f}", ratio)


def compare(name: str, real: Run, simulated: Run) -> list[Row]:
    """The rows of one run: counters, batch and queue by progress, order of the answers."""
    last = real.samples[-1], simulated.samples[-1]
    rows = [
        Row(f"{name}: {title}", last[0][key], last[1][key])
        for key, title in (
            ("prompt_tokens", "prompt tokens"),
            ("tokens", "generated tokens"),
            ("preemptions", "preemptions"),
            ("queries", "tokens looked for in the cache"),
            ("hits", "tokens found"),
        )
    ]
    if name != "prefixes":
        for key in ("running", "waiting"):
            theirs, ours = ([each[key] for each in run.samples[:-1]] for run in (real, simulated))
            rows.append(Row(f"{name}: {key}, mean", fmean(theirs), fmean(ours), 1))
            rows.append(Row(f"{name}: {key}, most", max(theirs), max(ours)))
        rows.append(
            Row(f"{name}: order of the answers, rank correlation", 1.0, ranks(real, simulated), 3)
        )
        for title, of in (("TTFT", "ttft_s"), ("E2E", "e2e_s")):
            p50_ms = [median(getattr(run, of).values()) * 1e3 for run in (real, simulated)]
            rows.append(Row(f"{name}: {title} p50 ms", p50_ms[0], p50_ms[1]))
    return rows


def ranks(real: Run, simulated: Run) -> float:
    """Spearman's correlation of the orders in which the answers ended."""
    places = [{number: at for at, number in enumerate(run.ended)} for run in (real, simulated)]
    return correlation(*([place[number] for number in real.ended] for place in places))


async def validate(url: str, seqs: int, batched: int, seed: int) -> tuple[Profile, list[Row]]:
    """Run all three on both. Raises OSError when the server does not answer."""
    model, size = await size_of(url, seqs, batched)
    real = Server(url, model, Request.words)  # ids, so that no tokenizer decides how many
    profile = await fitted(real, size)
    rng = Random(seed)
    tokens_per_s = profile.prefill_tokens_per_s
    # Of one request in `open`: its prefill, and its share of steps with some ten streams.
    steps_s = 55 * (profile.step_base_s / 10 + profile.step_s_per_stream)
    busy_s = 425 / tokens_per_s + steps_s + profile.api_s
    loads = {
        "burst": (burst(rng), False),
        "prefixes": (prefixes(rng), True),
        "open": (poisson(rng, 0.66 / busy_s, 40.0), False),
    }
    rows: list[Row] = []
    for name, (requests, one_by_one) in loads.items():
        say(f"{name}: {len(requests)} requests")
        theirs = await real.run(requests, one_by_one=one_by_one)
        server = await SimServer("like", profile, SIM_MODEL).start()
        ours = await Server(server.url, SIM_MODEL, text_of).run(requests, one_by_one=one_by_one)
        await server.stop()
        rows += compare(name, theirs, ours)
    return profile, rows


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--server", required=True, metavar="URL", help="a vLLM nobody else uses")
    option(parser, "--max-num-seqs N", count, 64, "as it was started with")
    option(parser, "--max-num-batched-tokens N", count, 2_048, "the same, of a CPU")
    option(parser, "--seed N", int, 1, "of the requests")


def run(options: Namespace) -> int:
    """Print the table; returns the exit status. Raises BenchError."""
    sizes = options.max_num_seqs, options.max_num_batched_tokens
    try:
        profile, rows = uvloop.run(validate(options.server.rstrip("/"), *sizes, options.seed))
    except (OSError, NotLikeVllm) as error:
        raise BenchError(f"{options.server}: {error}") from None
    print(
        f"Fitted: a step {profile.step_base_s * 1e3:.2f} ms and "
        f"{profile.step_s_per_stream * 1e6:.0f} us a stream, prefill "
        f"{profile.prefill_tokens_per_s:,.0f} tokens/s, {profile.api_s * 1e3:.1f} ms before the "
        f"scheduler has a request; {profile.kv_tokens:,} KV tokens in blocks "
        f"of {profile.block_tokens}.\n"
    )
    print(head("", "vLLM", "simulated", "ratio"))
    print("\n".join(map(str, rows)))
    return 0
