"""`penstock bench`: the benchmarks, each a subcommand that prints one table."""

import sys
from collections.abc import Callable, Sequence
from typing import Final


def _overhead(argv: Sequence[str]) -> int:
    from bench.overhead.cli import main

    return main(argv)


def _policies(argv: Sequence[str]) -> int:
    from bench.policies import main

    return main(argv)


def _estimators(argv: Sequence[str]) -> int:
    from bench.estimator_error import main

    return main(argv)


def _scrape(argv: Sequence[str]) -> int:
    from bench.scrape import main

    return main(argv)


def _soak(argv: Sequence[str]) -> int:
    from bench.reliability.soak import main

    return main(argv)


def _aborts(argv: Sequence[str]) -> int:
    from bench.reliability.aborts import main

    return main(argv)


def _slow(argv: Sequence[str]) -> int:
    from bench.reliability.slow import main

    return main(argv)


# A benchmark is imported when it is asked for.
COMMANDS: Final[dict[str, tuple[Callable[[Sequence[str]], int], str]]] = {
    "overhead": (_overhead, "CPU, latency and memory beside nginx, HAProxy and aiohttp"),
    "policies": (_policies, "what counting tokens buys, on simulated servers"),
    "estimators": (_estimators, "estimated against real prompt tokens, on texts of four classes"),
    "soak": (_soak, "load, leaving clients and failing servers, and then nothing is left"),
    "aborts": (_aborts, "how soon after a client leaves its backend is let go, in each phase"),
    "slow": (_slow, "clients that send or read slowly: what they cost the others, and memory"),
    "scrape": (_scrape, "what a /metrics scrape does to the streams beside it"),
}


def main(argv: Sequence[str]) -> int:
    """Run a benchmark; returns its exit status."""
    if argv and argv[0] in COMMANDS:
        return COMMANDS[argv[0]][0](argv[1:])
    asked = bool({"-h", "--help"} & set(argv[:1]))
    print(_usage(), file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _usage() -> str:
    lines = [f"  {name:<12}{what}" for name, (_, what) in COMMANDS.items()]
    usage = ["usage: penstock bench COMMAND [--help]", "", "commands:", *lines, ""]
    return "\n".join(
        [*usage, "Example: penstock bench overhead --quick; exit status 2 on a usage error."]
    )
