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
from penstock.bench.sim.manner import Manner, Span
from penstock.bench.sim.profiles import PROFILES, Profile
from penstock.bench.sim.server import SimServer


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    if options.count < 1 or options.speedup <= 0:
        _parser().error("--count and --speedup must be positive")
    profile = PROFILES[options.profile]
    seqs = options.max_num_seqs or profile.max_num_seqs
    if seqs >= (options.max_num_batched_tokens or profile.max_batched_tokens):
        _parser().error("--max-num-batched-tokens must be more than --max-num-seqs")
    try:
        uvloop.run(_serve(options))
    except OSError as error:
        print(f"penstock sim: cannot listen: {error.strerror}; give other ports", file=sys.stderr)
        return 1
    return 0


async def _serve(options: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    servers: list[SimServer] = []
    try:
        for index in range(options.count):
            port = options.port + index if options.port else 0
            server = SimServer(
                f"sim-{index}",
                _profile(options),
                options.model,
                speedup=options.speedup,
                seed=options.seed,
            )
            server.adapters.enabled = options.enable_lora
            server.manner = Manner(options.answer_tokens, options.hidden_tokens, options.early_role)
            servers.append(await server.start(options.host, port))
            print(f"listening {server.url} model={server.model}", flush=True)
        await stopped.wait()
    finally:
        for server in servers:
            await server.stop()


def _profile(options: argparse.Namespace) -> Profile:
    profile = PROFILES[options.profile]
    kv_tokens = options.kv_tokens or profile.kv_tokens
    return replace(
        profile,
        kv_tokens=kv_tokens,
        noise=options.noise,
        api_s=options.api_ms / 1e3,
        max_num_seqs=options.max_num_seqs or profile.max_num_seqs,
        max_batched_tokens=options.max_num_batched_tokens or profile.max_batched_tokens,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock sim",
        description="Runs simulated vLLM servers. They have no model and answer gibberish.",
        epilog="Example: penstock sim --port 8000 --speedup 10; exit status 0 after SIGTERM, 1 "
        "when a port is taken, 2 on a usage error.",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, required=True, help="port of the first server; 0 takes free ports"
    )
    parser.add_argument(
        "--count", type=count, default=1, help="number of servers, on consecutive ports (default 1)"
    )
    parser.add_argument(
        "--profile",
        choices=sorted(PROFILES),
        default="default",
        help="the GPU and model to simulate",
    )
    parser.add_argument(
        "--speedup",
        type=positive,
        default=1.0,
        help="the engine runs this many times faster (default 1)",
    )
    parser.add_argument(
        "--kv-tokens", type=count, help="size of the KV cache in tokens (default: the profile's)"
    )
    parser.add_argument(
        "--max-num-seqs", type=count, help="most streams at once (default: the profile's)"
    )
    parser.add_argument(
        "--max-num-batched-tokens",
        type=count,
        help="most tokens in a step, more than streams (default: the profile's)",
    )
    parser.add_argument(
        "--noise",
        type=nonnegative,
        default=0.0,
        help="random variation of a step's time, such as 0.05 (default 0)",
    )
    parser.add_argument(
        "--api-ms", type=nonnegative, default=0.0, help="time of the API server for each request"
    )
    _add_manner(parser)
    parser.add_argument(
        "--model", default="sim-model", help="name of the model (default sim-model)"
    )
    parser.add_argument(
        "--enable-lora",
        action="store_true",
        help="load LoRA adapters at run time, of any name and path",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the noise and of the text")
    return parser


def _add_manner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--answer-tokens",
        type=_span,
        metavar="MIN:MAX",
        help="length of an answer whose client states no limit (default 16 tokens)",
    )
    parser.add_argument(
        "--hidden-tokens",
        type=_span,
        metavar="MIN:MAX",
        help="tokens that are generated before the first one that is shown (default none)",
    )
    parser.add_argument(
        "--early-role",
        action="store_true",
        help="a chat's role chunk comes at once, not with the first token that is shown",
    )


def _span(text: str) -> Span:
    """A number of tokens, or the least and the most."""
    least, colon, most = text.partition(":")
    span = Span(count(least), count(most) if colon else count(least))
    if span.most < span.least:
        raise argparse.ArgumentTypeError("the first number is at most the second")
    return span
