"""`penstock bench canary`: how many requests show that a new version, or a new backend, is worse.

Outcomes are drawn: times and lengths from records of the simulated engine at seven loads, the rest
by the rates that a case states. The judge is the real one.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Final

from penstock.balancing.canary.newcomer import Outcome as Became
from penstock.balancing.canary.steps import Stage
from penstock.bench.arguments import count, listed, positive
from penstock.bench.canary import newcomers
from penstock.bench.canary.records import LOADS, Seen, record
from penstock.bench.canary.world import CASES, Case, Outcome, World
from penstock.bench.report import head, machine, row, save, say
from penstock.conf.canary import CanarySettings

EVERY_S: Final = 60.0
TITLES: Final = (
    "the new version",
    "rolled back",
    "promoted",
    "requests to it, p50",
    "p95",
    "of all requests until then, %",
    "of all requests harmed, %",
)
NEWCOMER_TITLES: Final = (
    "the new backend",
    "ejected",
    "no worse",
    "requests to it, p50",
    "p95",
    "seconds, p50",
)


def run(options: Namespace) -> int:
    """Print a table. Returns 0 if each case ends as it should in 95 % of its runs."""
    steps = tuple(options.steps)
    told: dict[str, Any] = {}
    right = True
    rows: list[str] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for number, case in enumerate(CASES):
            if options.only not in case.name:
                continue
            jobs = [(number, steps, seed) for seed in range(1, options.runs + 1)]
            outcomes = list(pool.map(_play, jobs, chunksize=max(1, options.runs // 50)))
            rows.append(_row(case, outcomes))
            say(rows[-1])
            told[case.name] = [_told(each) for each in outcomes]
            wanted = Stage.ROLLED_BACK if case.worse else Stage.PROMOTED
            right &= sum([each.stage is wanted for each in outcomes]) >= 0.95 * len(outcomes)
        beside = _newcomers(options, pool)
    print(f"{options.runs} runs each, steps {', '.join([f'{step:g}' for step in steps])}; ", end="")
    print(f"{machine('other work')}\n\n{head(*TITLES)}")
    print("\n".join(rows))
    print(f"\n{head(*NEWCOMER_TITLES)}")
    print("\n".join([text for text, _ in beside]))
    save(options.json, told)
    return 0 if right and all(each for _, each in beside) else 1


def _newcomers(options: Namespace, pool: ProcessPoolExecutor) -> list[tuple[str, bool]]:
    """For each new backend a row, and whether 95 % of the runs end as they should."""
    found = []
    for number, case in enumerate(newcomers.CASES):
        if options.only not in case.name:
            continue
        jobs = [(number, seed) for seed in range(1, options.runs + 1)]
        ends = list(pool.map(_play_newcomer, jobs, chunksize=max(1, options.runs // 50)))
        became = [each for each, _, _ in ends]
        requests, took_s = sorted([each for _, each, _ in ends]), [each for _, _, each in ends]
        text = row(
            case.name,
            became.count(Became.WORSE),
            became.count(Became.NO_WORSE),
            f"{median(requests):,.0f}",
            f"{requests[max(0, -(-len(requests) * 95 // 100) - 1)]:,}",
            f"{median(took_s):.0f}",
        )
        say(text)
        wrong = [each for each in became if (each is Became.WORSE) is not case.worse]
        found.append((text, len(wrong) <= 0.05 * len(became)))
    return found


def _play_newcomer(job: tuple[int, int]) -> tuple[Became, int, float]:
    number, seed = job
    return newcomers.play(newcomers.CASES[number], seed)


def _play(job: tuple[int, tuple[float, ...], int]) -> Outcome:
    number, steps, seed = job
    settings = CanarySettings(pool="next", steps=steps, every_s=EVERY_S)
    return World(CASES[number], settings, _records(), seed).run()


@cache
def _records() -> dict[float, list[Seen]]:
    return {load: record(load, 1) for load in LOADS}


def _row(case: Case, outcomes: Sequence[Outcome]) -> str:
    back = [each for each in outcomes if each.stage is Stage.ROLLED_BACK]
    promoted = [each for each in outcomes if each.stage is Stage.PROMOTED]
    number = sorted([each.to_canary for each in outcomes])
    share = median([each.to_canary / each.requests for each in outcomes])
    return row(
        case.name,
        len(back),
        len(promoted),
        f"{median(number):,.0f}",
        f"{number[max(0, -(-len(number) * 95 // 100) - 1)]:,}",
        f"{100 * share:.1f}",
        f"{100 * share * case.harmed:.2g}" if case.worse else "-",
    )


def _told(outcome: Outcome) -> dict[str, Any]:
    return {
        "stage": outcome.stage.value,
        "requests": outcome.requests,
        "to_canary": outcome.to_canary,
        "took_s": outcome.took_s,
        "events": [(e.at_s, e.stage.value, e.percent, e.why) for e in outcome.events],
    }


def arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--only", default="", metavar="TEXT", help="cases whose names hold it")
    add("--runs", type=count, default=200, metavar="K", help="of each case (default 200)")
    add(
        "--steps",
        type=listed(positive),
        default="10,50,100",
        metavar="PERCENT,…",
        help="(default 10,50,100)",
    )
    add("--jobs", type=count, default=2, metavar="J", help="at once (default 2)")
    add("--json", type=Path, metavar="OUT", help="write how each run went")
