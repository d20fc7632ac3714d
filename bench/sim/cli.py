"""`penstock sim`: simulated vLLM servers on ports of this machine.

Prints one line per server, `listening http://HOST:PORT model=NAME`, and serves until SIGTERM
or SIGINT.
"""

import argparse
import asyncio
import signal
import sys
from dataclasses import replace

import uvloop

from penstock.bench.arguments import count, nonnegative, positive
from penstock.bench.sim.job import Manner, Span
from penstock.bench.sim.profiles import PROFILES, Profile
from penstock.bench.sim.server import SimServer


def main(argv: list[str]) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    profile = _profile(options)
    if profile is None:
        parser.error("--max-num-batched-tokens must be more than --max-num-seqs")
    try:
        uvloop.run(_serve(options, profile))
    except OSError as error:
        print(f"penstock sim: cannot listen: {error.strerror}; give other ports", file=sys.stderr)
        return 1
    return 0


async def _serve(options: argparse.Namespace, profile: Profile) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    servers: list[SimServer] = []
    try:
        for index in range(options.count):
            port = options.port + index if options.port else 0
            name, speedup = f"sim-{index}", options.speedup
            server = SimServer(name, profile, options.model, speedup=speedup, seed=options.seed)
            server.adapters.enabled = options.enable_lora
            server.manner = Manner(options.answer_tokens, options.hidden_tokens, options.early_role)
            servers.append(await server.start(options.host, port))
            print(f"listening {server.url} model={server.model}", flush=True)
        await stopped.wait()
    finally:
        for server in servers:
            await server.stop()


def _profile(options: argparse.Namespace) -> Profile | None:
    """None where a step could not have all streams."""
    profile = PROFILES[options.profile]
    seqs = options.max_num_seqs or profile.max_num_seqs
    batched = options.max_num_batched_tokens or profile.max_batched_tokens
    if seqs >= batched:
        return None
    return replace(
        profile,
        kv_tokens=options.kv_tokens or profile.kv_tokens,
        noise=options.noise,
        api_s=options.api_ms / 1e3,
        max_num_seqs=seqs,
        max_batched_tokens=batched,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock sim",
        description="Runs simulated vLLM servers. They have no model and answer gibberish.",
        epilog="Example: penstock sim --port 8000 --speedup 10; exit status 0 after SIGTERM, 1 "
        "when a port is taken, 2 on a usage error.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    add("--port", type=int, required=True, help="port of the first server; 0 takes free ports")
    on = "number of servers, on consecutive ports (default 1)"
    add("--count", type=count, default=1, help=on)
    simulates = "the GPU and model to simulate"
    add("--profile", choices=sorted(PROFILES), default="default", help=simulates)
    faster = "the engine runs this many times faster (default 1)"
    add("--speedup", type=positive, default=1.0, help=faster)
    add("--kv-tokens", type=count, help="size of the KV cache in tokens (default: the profile's)")
    add("--max-num-seqs", type=count, help="most streams at once (default: the profile's)")
    batch = "most tokens in a step, more than streams (default: the profile's)"
    add("--max-num-batched-tokens", type=count, help=batch)
    noise = "random variation of a step's time, such as 0.05 (default 0)"
    add("--noise", type=nonnegative, default=0.0, help=noise)
    add("--api-ms", type=nonnegative, default=0.0, help="time of the API server for each request")
    length = "length of an answer whose client states no limit (default 16 tokens)"
    add("--answer-tokens", type=_span, metavar="MIN:MAX", help=length)
    hidden = "tokens that are generated before the first one that is shown (default none)"
    add("--hidden-tokens", type=_span, metavar="MIN:MAX", help=hidden)
    early = "a chat's role chunk comes at once, not with the first token that is shown"
    add("--early-role", action="store_true", help=early)
    add("--model", default="sim-model", help="name of the model (default sim-model)")
    lora = "load LoRA adapters at run time, of any name and path"
    add("--enable-lora", action="store_true", help=lora)
    add("--seed", type=int, default=0, help="seed of the noise and of the text")
    return parser


def _span(text: str) -> Span:
    """A number of tokens, or the least and the most."""
    least, colon, most = text.partition(":")
    span = Span(count(least), count(most) if colon else count(least))
    if span.most < span.least:
        raise argparse.ArgumentTypeError("the first number is at most the second")
    return span
