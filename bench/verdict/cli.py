"""`penstock bench verdict`: verdicts on fleets whose trouble is known, over HTTP in real time."""

import asyncio
import json
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.bench.verdict import (
    fourth,
    fourth_further,
    fourth_states,
    known,
    opened,
    opened_engines,
    opened_further,
    third,
    third_further,
)
from penstock.bench.verdict.play import Told, play
from penstock.bench.verdict.scenario import Scenario

SETS: Final[dict[str, tuple[Scenario, ...]]] = {
    "known": known.SCENARIOS,
    "opened": opened.SCENARIOS
    + opened_engines.SCENARIOS
    + opened_further.SCENARIOS
    + third.SCENARIOS
    + third_further.SCENARIOS,
    "unseen": fourth.SCENARIOS + fourth_further.SCENARIOS + fourth_states.SCENARIOS,
}


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
    """Play the scenarios one after another. Returns 1 if a verdict is wrong."""
    chosen = [each for each in SETS[options.set] if options.only in each.name]
    told = [_played(each, options.seed) for each in chosen]
    print(table(told))
    print(confusion(told))
    if options.json is not None:
        listing = {each.scenario.name: each.verdicts for each in told}
        options.json.write_text(json.dumps(listing))
    return 0 if all(each.right for each in told) else 1


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
        lines.append(f"| {each.scenario.name} | {truth} | {kind} | {after} | {last['sentence']} |")
    return "\n".join(lines)


def confusion(told: Sequence[Told]) -> str:
    """How often each truth was told as what."""
    counts = Counter(
        (each.scenario.truth[0], each.scenario.truth[0] if each.right else each.at_last["kind"])
        for each in told
    )
    kinds = sorted({kind for pair in counts for kind in pair})
    lines = [f"\n| truth | {' | '.join(kinds)} |", f"|---|{'---:|' * len(kinds)}"]
    for truth in sorted({truth for truth, _ in counts}):
        row = " | ".join(str(counts[truth, kind] or "") for kind in kinds)
        lines.append(f"| {truth} | {row} |")
    right = sum(each.right for each in told)
    return "\n".join([*lines, f"\n{right} of {len(told)} right"])
