"""A cell of the table: its coordinates, how it is computed, and where it is kept when it is."""

import hashlib
import os
from argparse import ArgumentTypeError
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Final

import orjson

from penstock.balancing.policies import POLICIES
from penstock.balancing.policies.token_cost import TokenCost, Weights
from penstock.bench.baselines import BASELINES
from penstock.bench.report import BenchError
from penstock.bench.routing.experiment import CALM, Adversity, Experiment, MakePolicy
from penstock.bench.routing.generators import GENERATORS
from penstock.bench.routing.trace import (
    Arrival,
    UnknownFormat,
    fitting,
    opened,
    read,
    sample,
    speedup,
    window,
)
from penstock.bench.sim.profiles import GPUS

# What the figures follow from: a cell that other code made is computed anew.
WEIGHED: Final = "token_cost:"
ROOT: Final = Path(__file__).resolve().parents[2]
CODE: Final = (
    *("balancing/**/*.py", "bench/baselines.py", "bench/virtual_time.py", "bench/routing/*.py"),
    "bench/sim/*.py",
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy under one workload. `trace` is a file or a generator's name."""

    trace: str
    policy: str
    load: float
    seed: int
    routers: int
    backends: int
    profile: str
    window_s: float
    noise: float = 0.0
    api_s: float = 0.0
    share_s: float = 0.0
    adversity: Adversity = CALM
    admission: bool = False

    def figures(self) -> dict[str, float]:
        """Compute it; the same cell gives the same figures.

        Raises BenchError when the window holds too few requests.
        """
        profile = replace(GPUS[self.profile], noise=self.noise, api_s=self.api_s)
        arrivals = fitting(self._arrivals(), profile)
        if not arrivals or arrivals[-1].at_s <= 0.0:
            raise BenchError(
                f"{self.trace}: too few requests in {self.window_s:g} s at seed {self.seed} that"
                f" fit {self.profile}: a longer --window-s, or another --profile"
            )
        # One at half speed does half the work.
        engines = self.backends - self.adversity.slow / 2
        faster = speedup(arrivals, profile, engines, self.load)
        arrivals = [each._replace(at_s=each.at_s / faster) for each in arrivals]
        experiment = Experiment(
            maker(self.policy),
            profile,
            backends=self.backends,
            routers=self.routers,
            share_s=self.share_s,
            seed=self.seed,
            adversity=self.adversity,
            admission=self.admission,
        )
        return experiment.run(arrivals).figures()

    def _arrivals(self) -> list[Arrival]:
        """The same for all policies and loads."""
        rng = Random(self.seed)
        if self.trace in GENERATORS:
            return GENERATORS[self.trace](self.window_s, rng)
        return recorded(Path(self.trace), self.window_s, rng)

    @property
    def file(self) -> Path:
        """Where its figures are kept."""
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        about = asdict(self)
        if self.trace not in GENERATORS:
            about["trace"] = _digest_of(Path(self.trace))
        name = hashlib.sha256(orjson.dumps([about, _code()])).hexdigest()[:32]
        return base / "penstock" / "routing" / f"{name}.json"


def recorded(path: Path, window_s: float, rng: Random) -> list[Arrival]:
    """A window of a trace, or of what ServeGen's clients would send.

    Raises UnknownFormat, OSError.
    """
    try:
        with opened(path) as lines:
            first = next(lines, "")
            if first.startswith('{"client"'):
                return sample([first, *lines], window_s, rng)
        arrivals = read(path, rng)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UnknownFormat):
            raise
        raise UnknownFormat(f"{path}: a row is not as its format says") from None
    if not arrivals:
        raise UnknownFormat(f"{path}: no rows")
    return window(arrivals, window_s, rng)


def workload(text: str) -> str:
    """For argparse: a generator's name, or a trace file that can be read."""
    if text not in GENERATORS:
        try:
            recorded(Path(text), 1.0, Random(0))
        except (OSError, UnknownFormat) as error:
            names = ", ".join(GENERATORS)
            raise ArgumentTypeError(f"{error}; a file, or one of {names}") from None
    return text


def policy_name(text: str) -> str:
    """For argparse: a policy's name, or `token_cost:TERM=WEIGHT` for another weight of a term."""
    try:
        if text.startswith(WEIGHED):
            weights_of(text.removeprefix(WEIGHED))
            return text
    except (TypeError, ValueError):
        pass
    if text not in POLICIES and text not in BASELINES:
        known = ", ".join([*POLICIES, *BASELINES])
        terms = "|".join(Weights._fields)
        raise ArgumentTypeError(
            f"no policy {text!r}; there are {known}, and {WEIGHED}TERM=WEIGHT of {terms}"
        )
    return text


def weights_of(text: str) -> Weights:
    """`later=0:held=2`. Raises ValueError, TypeError."""
    given = dict(each.split("=") for each in text.split(":"))
    return Weights(**{name: float(value) for name, value in given.items()})


def maker(policy: str) -> MakePolicy:
    """How a policy, ours or another router's rule, is made."""
    if policy in BASELINES:
        return lambda backends, view: BASELINES[policy](view)
    if policy.startswith(WEIGHED):
        weights = weights_of(policy.removeprefix(WEIGHED))
        return lambda backends, view: TokenCost(weights)
    return lambda backends, view: POLICIES[policy](backends)


def compute(cell: Cell) -> dict[str, float]:
    """The figures of a cell, from where they are kept or computed and kept."""
    if cell.file.exists():
        figures: dict[str, float] = orjson.loads(cell.file.read_bytes())
        return figures
    figures = cell.figures()
    cell.file.parent.mkdir(parents=True, exist_ok=True)
    partial = cell.file.with_suffix(f".{os.getpid()}")
    partial.write_bytes(orjson.dumps(figures))
    partial.replace(cell.file)
    return figures


@cache
def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _code() -> str:
    digest = hashlib.sha256()
    for path in sorted(path for pattern in CODE for path in ROOT.glob(pattern)):
        if path.name != "cli.py":  # it only shows them
            digest.update(path.read_bytes())
    return digest.hexdigest()
