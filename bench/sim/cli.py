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

from bench.arguments import count, nonnegative, positive
from bench.sim.profiles import PROFILES, Profile
from bench.sim.server import SimServer


def main(argv: list[str]) -> int:
    options = _parser().parse_args(argv)
    if options.count < 1 or options.speedup <= 0:
        _parser().error("--count and --speedup must be positive")
    try:
        uvloop.run(_serve(options))
    except OSError as error:
        print(f"penstock sim: {error}", file=sys.stderr)
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
            servers.append(await server.start(options.host, port))
            print(f"listening {server.url} model={server.model}", flush=True)
        await stopped.wait()
    finally:
        for server in servers:
            await server.stop()


def _profile(options: argparse.Namespace) -> Profile:
    profile = PROFILES[options.profile]
    kv_tokens = options.kv_tokens or profile.kv_tokens
    return replace(profile, kv_tokens=kv_tokens, noise=options.noise, api_s=options.api_ms / 1e3)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock sim",
        description="Simulated vLLM servers.",
        epilog="Example: penstock sim --port 8000 --speedup 10; exit status 0 after SIGTERM, 1 "
        "when a port is taken, 2 on a usage error.",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True, help="the first port; 0 takes free ones")
    parser.add_argument("--count", type=count, default=1, help="servers, on consecutive ports")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="default")
    parser.add_argument("--speedup", type=positive, default=1.0, help="divides engine time")
    parser.add_argument("--kv-tokens", type=count, help="KV cache size, instead of the profile's")
    parser.add_argument(
        "--noise", type=nonnegative, default=0.0, help="of a step's time, e.g. 0.05"
    )
    parser.add_argument(
        "--api-ms", type=nonnegative, default=0.0, help="API server's time a request"
    )
    parser.add_argument("--model", default="sim-model")
    parser.add_argument("--seed", type=int, default=0)
    return parser
