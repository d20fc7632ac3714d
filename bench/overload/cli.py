"""`penstock bench overload`: a fleet at and above its capacity, in virtual time or over HTTP.

Clients wait for 5 s for a first token and retry twice as the OpenAI SDK does; a tenth of the calls
is of the high class. A call is good with a first token within 5 s and 100 ms a token.
`--panel` plays cells of its own instead, also below the capacity.
"""

import statistics
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import uvloop

from penstock.balancing.admission.degradation import Step
from penstock.bench.arguments import listed, names, option, options_of_runs, positive
from penstock.bench.overload import panel
from penstock.bench.overload.calls import Call, Log
from penstock.bench.overload.http import Player
from penstock.bench.overload.mixes import ENGINES, MIXES, PROFILE
from penstock.bench.overload.outcome import longest_quarter, of_pressed
from penstock.bench.overload.scenes import RULES as PLAIN_RULES
from penstock.bench.overload.scenes import WARM_S, Scene, is_high, loaded
from penstock.bench.peers.field import peers, start_all
from penstock.bench.peers.fleet import Fleet
from penstock.bench.report import computed, head, row, save, say, short

SHOWN: Final = (
    ("good_per_s", "good/s"),
    ("tokens_per_s", "tokens/s"),
    ("high_goodput", "high: good"),
    ("high_ttft_p99_s", "TTFT p99 s"),
    ("low_ttft_p50_s", "low: TTFT p50 s"),
    ("low_ttft_p99_s", "p99 s"),
    ("refused", "refused"),
    ("capped", "capped"),
    ("late", "late"),
    ("longest_quarter", "longest quarter"),
    ("preemptions", "preemptions"),
    ("prediction_error", "prediction off"),
)
DEGRADE: Final = "degrade"
RULES: Final = (*PLAIN_RULES, DEGRADE)
GROUPS: Final = {"high": is_high, "low": lambda call: call.rank > 0}
# What `degrade` does beside admission: at half of the pressure, shorter answers to the low class.
STEPS: Final = (Step(rank=1, pressure=0.5, max_tokens=256),)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. `load`: 1.0 is the capacity of the mix."""

    mix: str
    load: float
    rule: str
    seed: int
    length_s: float

    def calls(self) -> list[Call]:
        """The same for all rules."""
        return self._scene().calls(self.seed)

    def figures(self) -> dict[str, float]:
        """Compute it, in virtual time. The same cell gives the same figures."""
        rule, steps = ("admission", STEPS) if self.rule == DEGRADE else (self.rule, ())
        log, *_, preemptions = self._scene().played(rule, self.seed, self.calls(), steps)
        return self.judged(log, preemptions)

    def judged(self, log: Log, preemptions: int = 0) -> dict[str, float]:
        """Rates are per second, times in seconds, the rest are shares."""
        span_s = WARM_S, self.length_s
        quarter = longest_quarter(MIXES[self.mix], log, *span_s)
        return of_pressed(log, *span_s, preemptions, GROUPS) | {"longest_quarter": quarter}

    def _scene(self) -> Scene:
        return replace(loaded(self.mix, self.load), length_s=self.length_s)


def run(options: Namespace) -> int:
    """Print a table for each mix, or the panel. Returns the exit status."""
    if options.panel:
        options.rules = options.rules or list(PLAIN_RULES)
        if DEGRADE in options.rules:
            raise ArgumentTypeError(f"--panel has no rule {DEGRADE}")
        return panel.run(options)
    options.rules = options.rules or list(RULES[:2])
    found = _over_http(options) if options.http else _in_virtual_time(options)
    for mix in options.mix:
        _table(mix, {cell: each for cell, each in found.items() if cell.mix == mix})
    save(options.json, {"cells": [asdict(cell) | each for cell, each in found.items()]})
    return 0


def _in_virtual_time(options: Namespace) -> dict[Cell, dict[str, float]]:
    seeds = range(1, options.seeds + 1)
    cells = [
        Cell(mix, load, rule, seed, options.length_s)
        for mix, load, rule, seed in product(options.mix, options.load, options.rules, seeds)
    ]
    return computed(Cell.figures, cells, options.jobs, _name)


def _name(cell: Cell) -> str:
    return f"{cell.mix} {cell.load:g} {cell.rule} seed {cell.seed}"


def _over_http(options: Namespace) -> dict[Cell, dict[str, float]]:
    """Real proxies before simulated servers. A proxy that cannot be started is told and left out.

    The servers keep no more than their profile's default of streams, whatever the mix says.
    """
    found: dict[Cell, dict[str, float]] = {}
    for name in options.mix:
        mix = MIXES[name]
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="penstock-bench-")))
            kv_tokens = mix.profile.kv_tokens
            fleet = stack.enter_context(Fleet(ENGINES, PROFILE, options.speedup, kv_tokens))
            running, missing = start_all(options.http, fleet.ports, folder, stack)
            for peer, reason in missing.items():
                say(f"left out: {peer.label}: {reason}")
            seeds = range(1, options.seeds + 1)
            for load, seed, (peer, proxy) in product(options.load, seeds, running.items()):
                cell = Cell(name, load, peer.label, seed, options.length_s)
                say(_name(cell))
                fleet.fresh()
                player = Player(proxy.port, options.speedup, seed)
                log = uvloop.run(player.play(cell.calls()))
                found[cell] = cell.judged(log)
    return found


def _table(mix: str, found: Mapping[Cell, dict[str, float]]) -> None:
    print(f"\n{mix}\n\n{head('load, rule', *[title for _, title in SHOWN])}")
    for load, rule in dict.fromkeys((cell.load, cell.rule) for cell in found):
        runs = [each for cell, each in found.items() if (cell.load, cell.rule) == (load, rule)]
        means = [statistics.fmean(each.get(key, 0.0) for each in runs) for key, _ in SHOWN]
        print(row(f"{load:g} {rule}", *[short(mean) for mean in means]))


def arguments(parser: ArgumentParser) -> None:
    rules = (
        f"{', '.join(RULES)} (default the first two, with --panel all but the last);"
        " least_requests: that policy, at once; degrade: admission, and at half of the pressure"
        " answers of 256 tokens at most for the low class"
    )
    peer = "through penstock, penstock:token_cost+at_once or another proxy of `bench peers`"
    half = "patient clients below the capacity or little above it, far too many calls, or both:"
    half += " beside a baseline, bold where the difference is more than its noise"
    for name, kind, default, text in (
        ("--mix NAME,…", names("mix", MIXES), ",".join(MIXES), "which"),
        ("--load X,…", listed(positive), "0.8,1.1,2,5", "1.0: the fleet's capacity"),
        ("--rules NAME,…", names("rule", RULES), None, rules),
        ("--http PEER,…", peers, None, f"in real time, {peer}"),
        ("--speedup X", positive, 1.0, "how many times as fast the servers run with --http"),
        ("--length-s S", positive, 80.0, "of a run"),
        ("--panel", list(panel.HALVES), None, half),
        ("--cells NAME,…", names("cell", panel.SCENES), None, "only these of the panel"),
        ("--baseline FILE", Path, panel.FILE, "what the panel's figures were"),
        ("--write-baseline", bool, None, "have them be what was found, from now on"),
    ):
        option(parser, name, kind, default, text)
    options_of_runs(parser, 1)
