"""`penstock bench canary`: how many requests show that a new version, or a new backend, is worse.

Outcomes are drawn: times and lengths from records of the simulated engine at seven loads, the rest
by the rates that a case states. The judge is the real one.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from statistics import median
from typing import Any, Final, TypeVar

from penstock.balancing.canary.judge import Outcome as Became
from penstock.balancing.canary.steps import Stage
from penstock.bench.arguments import count, listed, option, options_of_jobs, positive
from penstock.bench.canary.records import LOADS, Seen, record
from penstock.bench.canary.world import CASES, NEWCOMERS, Case, Outcome, World, play_newcomer
from penstock.bench.report import head, machine, row, save, say
from penstock.conf.canary import CanarySettings

EVERY_S: Final = 60.0
# Of the runs of a case, so many must end as they should.
RIGHT: Final = 0.95
TITLES: Final = (
    *("the new version", "rolled back", "promoted", "requests to it, p50", "p95"),
    *("of all requests until then, %", "of all requests harmed, %"),
)
NEWCOMER_TITLES: Final = (
    *("the new backend", "ejected", "no worse", "requests to it, p50", "p95", "seconds, p50"),
)
R = TypeVar("R")


def run(options: Namespace) -> int:
    """Print a table. Returns 0 if each case ends as it should in 95 % of its runs."""
    steps = tuple(options.steps)
    told: dict[str, Any] = {}
    right = True
    rows: dict[str, list[str]] = {"versions": [], "backends": []}
    with ProcessPoolExecutor(options.jobs) as pool:

        def played(play: Callable[[int], R]) -> list[R]:
            chunk = max(1, options.runs // 50)
            return list(pool.map(play, range(1, options.runs + 1), chunksize=chunk))

        for number, case in enumerate(CASES):
            if options.only in case.name:
                outcomes = played(partial(_play, number, steps))
                rows["versions"].append(_row(case, outcomes))
                say(rows["versions"][-1])
                told[case.name] = [_told(each) for each in outcomes]
                wanted = Stage.ROLLED_BACK if case.worse else Stage.PROMOTED
                right &= sum([each.stage is wanted for each in outcomes]) >= RIGHT * len(outcomes)
        for number, new in enumerate(NEWCOMERS):
            if options.only in new.name:
                ends = played(partial(_play_newcomer, number))
                rows["backends"].append(_newcomer_row(new.name, ends))
                say(rows["backends"][-1])
                as_due = [(became is Became.WORSE) is new.worse for became, _, _ in ends]
                right &= sum(as_due) >= RIGHT * len(ends)
    print(f"{options.runs} runs each, steps {', '.join([f'{step:g}' for step in steps])}; ", end="")
    print(f"{machine('other work')}\n")
    print("\n".join([head(*TITLES), *rows["versions"], ""]))
    print("\n".join([head(*NEWCOMER_TITLES), *rows["backends"]]))
    save(options.json, told)
    return 0 if right else 1


def _play(number: int, steps: tuple[float, ...], seed: int) -> Outcome:
    settings = CanarySettings(pool="next", steps=steps, every_s=EVERY_S)
    return World(CASES[number], settings, _records(), seed).run()


def _play_newcomer(number: int, seed: int) -> tuple[Became, int, float]:
    return play_newcomer(NEWCOMERS[number], seed)


@cache
def _records() -> dict[float, list[Seen]]:
    return {load: record(load, 1) for load in LOADS}


def _row(case: Case, outcomes: Sequence[Outcome]) -> str:
    stages = [each.stage for each in outcomes]
    share = median([each.to_canary / each.requests for each in outcomes])
    return row(
        case.name,
        stages.count(Stage.ROLLED_BACK),
        stages.count(Stage.PROMOTED),
        *_quantiles([each.to_canary for each in outcomes]),
        f"{100 * share:.1f}",
        f"{100 * share * case.harmed:.2g}" if case.worse else "-",
    )


def _newcomer_row(name: str, ends: Sequence[tuple[Became, int, float]]) -> str:
    became = [each for each, _, _ in ends]
    found = became.count(Became.WORSE), became.count(Became.NO_WORSE)
    requests = _quantiles([each for _, each, _ in ends])
    return row(name, *found, *requests, f"{median([each for _, _, each in ends]):.0f}")


def _quantiles(numbers: Sequence[int]) -> tuple[str, str]:
    """The median and the 95th percentile."""
    ordered = sorted(numbers)
    return f"{median(ordered):,.0f}", f"{ordered[max(0, -(-len(ordered) * 95 // 100) - 1)]:,}"


def _told(outcome: Outcome) -> dict[str, Any]:
    return {
        "stage": outcome.stage.value,
        "requests": outcome.requests,
        "to_canary": outcome.to_canary,
        "took_s": outcome.took_s,
        "events": [(e.at_s, e.stage.value, e.percent, e.why) for e in outcome.events],
    }


def arguments(parser: ArgumentParser) -> None:
    option(parser, "--only TEXT", str, "", "cases whose names hold it")
    option(parser, "--steps PERCENT,…", listed(positive), "10,50,100", "")
    option(parser, "--runs K", count, 200, "of each case")
    options_of_jobs(parser)
