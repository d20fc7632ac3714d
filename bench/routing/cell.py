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

from balancing.policies import POLICIES
from bench.baselines import BASELINES
from bench.routing.experiment import Experiment, MakePolicy
from bench.routing.generators import GENERATORS
from bench.routing.load import fitting, speedup
from bench.routing.servegen import sample
from bench.routing.trace import Arrival, UnknownFormat, opened, read, window
from bench.sim.profiles import GPUS

# What the figures follow from: a cell that other code made is computed anew.
ROOT: Final = Path(__file__).resolve().parents[2]
CODE: Final = ("balancing/**/*.py", "bench/baselines/*.py", "bench/routing/*.py", "bench/sim/*.py")
# What only shows them.
NOT_CODE: Final = frozenset({"cli.py", "figure.py", "interval.py"})


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

    def figures(self) -> dict[str, float]:
        """Compute it; the same cell gives the same figures."""
        profile = replace(GPUS[self.profile], noise=self.noise, api_s=self.api_s)
        arrivals = fitting(self._arrivals(), profile)
        faster = speedup(arrivals, profile, self.backends, self.load)
        arrivals = [each._replace(at_s=each.at_s / faster) for each in arrivals]
        experiment = Experiment(
            maker(self.policy),
            profile,
            backends=self.backends,
            routers=self.routers,
            seed=self.seed,
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


def maker(policy: str) -> MakePolicy:
    """How a policy, ours or another router's rule, is made."""
    if policy in BASELINES:
        return lambda backends, view: BASELINES[policy](view)
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
        if path.name not in NOT_CODE:
            digest.update(path.read_bytes())
    return digest.hexdigest()
