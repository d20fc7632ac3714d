"""`penstock bench`: the benchmarks, each a subcommand that prints one table."""

import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from bench.processes import NotStarted

# A benchmark is imported when it is asked for: the module whose `main(argv)` it is.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "overhead": ("overhead.cli", "CPU, latency and memory beside seven other proxies"),
    "peers": ("peers.cli", "the same requests through other proxies, on simulated servers"),
    "routing": ("routing.cli", "policies on simulated engines in virtual time"),
    "engine": ("validate_engine", "the simulated engine beside a real vLLM"),
    "judge": ("judge", "vLLM's own benchmark client through penstock"),
    "decision": ("decision", "what one choice costs: reading, hashing, choosing; the index's size"),
    "policies": ("policies", "what counting tokens buys, on simulated servers"),
    "estimators": ("estimator_error", "estimated and real prompt tokens, on four classes of text"),
    "soak": ("reliability.soak", "load, leaving clients, failing servers, and then nothing left"),
    "aborts": ("reliability.aborts", "how soon after a client leaves its backend is let go"),
    "slow": ("reliability.slow", "slow senders and readers: what others lose, and memory"),
    "stalls": ("reliability.stalls", "how long one body holds up all other streams"),
    "scrape": ("scrape", "what a /metrics scrape does to the streams beside it"),
}


def main(argv: Sequence[str]) -> int:
    """Run a benchmark; returns its exit status."""
    if argv and argv[0] in COMMANDS:
        # As an interrupt does, so that what a benchmark has started ends with it.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        module = import_module(f"bench.{COMMANDS[argv[0]][0]}")
        try:
            return int(module.main(argv[1:]))
        except NotStarted as error:
            print(f"penstock bench: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
    asked = bool({"-h", "--help"} & set(argv[:1]))
    print(_usage(), file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _usage() -> str:
    lines = [f"  {name:<12}{what}" for name, (_, what) in COMMANDS.items()]
    usage = ["usage: penstock bench COMMAND [--help]", "", "commands:", *lines, ""]
    return "\n".join(
        [*usage, "Example: penstock bench overhead --quick; exit status 2 on a usage error."]
    )
