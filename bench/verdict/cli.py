"""`penstock bench verdict`: verdicts on fleets whose trouble is known, over HTTP in real time."""

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.bench.report import BenchError, head, row, save
from penstock.bench.verdict.play import Scenario, Told, play

# In a checkout only. Nothing of it is in a wheel.
SCENARIOS: Final = Path(__file__).resolve().parents[2] / "tests" / "data" / "verdict"
SETS: Final = ("known", "opened", "unseen")


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        choices=SETS,
        default="known",
        help="known: those the rules were made with; opened: written without knowledge of the"
        " rules, and looked at since; unseen: written so, and played before anybody looked at them",
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose names hold it")
    parser.add_argument("--seed", type=int, default=1, help="of sizes and times (default 1)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all verdicts")


def run(options: Namespace) -> int:
    """Play the scenarios one after another. Returns 1 if a verdict is wrong. Raises BenchError."""
    chosen = [each for each in scenarios(options.set) if options.only in each.name]
    told = [_played(each, options.seed) for each in chosen]
    print(table(told))
    print(confusion(told))
    save(options.json, {each.scenario.name: each.verdicts for each in told})
    return 0 if all(each.right for each in told) else 1


def scenarios(name: str) -> tuple[Scenario, ...]:
    """A set. Raises BenchError where there is no checkout."""
    path = SCENARIOS / f"{name}.yaml"
    if not path.exists():
        raise BenchError(f"no scenarios: {path} is only in a checkout of penstock's repository")
    return msgspec.yaml.decode(path.read_bytes(), type=tuple[Scenario, ...])


def _played(scenario: Scenario, seed: int) -> Told:
    told = asyncio.run(play(scenario, seed))
    print(f"{scenario.name}: {told.at_last['kind']}", file=sys.stderr, flush=True)
    return told


def table(told: Sequence[Told]) -> str:
    """A row for each scenario."""
    lines = ["| scenario | truth | told | right after s | sentence |", "|---|---|---|---:|---|"]
    for each in told:
        last, after_s = each.at_last, each.right_after_s
        kind = last["kind"] if each.right else f"**{last['kind']}**"
        after = f"{after_s:.1f}" if after_s is not None else "-"
        truth = ", ".join(each.scenario.truth)
        lines.append(row(each.scenario.name, truth, kind, after, last["sentence"]))
    return "\n".join(lines)


def confusion(told: Sequence[Told]) -> str:
    """How often each truth was told as what."""
    counts = Counter(
        (each.scenario.truth[0], each.scenario.truth[0] if each.right else each.at_last["kind"])
        for each in told
    )
    kinds = sorted({kind for pair in counts for kind in pair})
    rows = [
        row(truth, *[counts[truth, kind] or "" for kind in kinds])
        for truth in sorted({truth for truth, _ in counts})
    ]
    right = sum(each.right for each in told)
    return "\n".join(["", head("truth", *kinds), *rows, "", f"{right} of {len(told)} right"])
