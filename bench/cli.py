"""`penstock bench`: the benchmarks, each a subcommand that prints its command line and one table.

A benchmark is a module with `arguments(parser)`, which says what it takes, and `run(options)`,
which returns its exit status.
"""

import shlex
import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from penstock.bench.report import BenchError

# A benchmark's module is imported when it is asked for.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "overhead": ("overhead.cli", "CPU, latency and memory beside seven other proxies"),
    "peers": ("peers.cli", "the same requests through other proxies, on simulated servers"),
    "routing": ("routing.cli", "policies on simulated engines in virtual time"),
    "overload": ("overload.cli", "admission above a fleet's capacity, in virtual time"),
    "spill": (
        "routing.spill",
        "long prompts: one fleet, two pools, two that spill, in virtual time",
    ),
    "canary": ("canary.cli", "how soon a worse version is rolled back, in virtual time"),
    "verdict": ("verdict", "verdicts on fleets whose trouble is known, in real time"),
    "engine": ("validate_engine", "the simulated engine beside a real vLLM"),
    "judge": ("judge", "vLLM's own benchmark client through penstock"),
    "decision": ("decision", "CPU of one choice (reading, hashing, choosing) and the index's size"),
    "waiting": ("waiting", "CPU of requests that wait: entering, a look at them, leaving"),
    "soak": ("reliability.soak", "load, leaving clients and failing servers; nothing may remain"),
    "aborts": ("reliability.aborts", "time from a client's leaving until its backend is free"),
    "slow": ("reliability.slow", "slow senders and readers: memory, and what they cost others"),
    "stalls": ("reliability.stalls", "how long one body holds up all other streams"),
    "bodies": ("reliability.bodies", "the memory that many large bodies take, and what is left"),
    "scrapes": ("reliability.scrapes", "what scrapes of 1,000 backends add to a stream's gaps"),
}


def main(argv: Sequence[str]) -> int:
    """Run the benchmark that is named first; returns its exit status."""
    if argv and argv[0] in COMMANDS:
        # As an interrupt does, so that what a benchmark has started ends with it.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return run(*argv)
    asked = bool({"-h", "--help"} & set(argv[:1]))
    print(_usage(), file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def run(name: str, *argv: str) -> int:
    """Run a benchmark; returns its exit status."""
    module_name, what = COMMANDS[name]
    module = import_module(f"penstock.bench.{module_name}")
    description = f"{what[0].upper()}{what[1:]}."
    parser = ArgumentParser(prog=f"penstock bench {name}", description=description)
    module.arguments(parser)
    options = parser.parse_args(argv)
    options.command = shlex.join(["penstock", "bench", name, *argv])
    print(f"$ {options.command}\n", flush=True)
    try:
        return int(module.run(options))
    except ArgumentTypeError as error:
        parser.error(str(error))
    except BenchError as error:
        print(f"penstock bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _usage() -> str:
    lines = [f"  {name:<12}{what}" for name, (_, what) in COMMANDS.items()]
    usage = ["usage: penstock bench COMMAND [--help]", "", "commands:", *lines, ""]
    return "\n".join(
        [*usage, "Example: penstock bench overhead --quick; exit status 2 on a usage error."]
    )
