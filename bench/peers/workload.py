"""What is played to the peers: a piece of a workload of the routing experiments, at a load.

The same arrivals also go through an experiment in virtual time, so that a rule's order there can
be held against its order over HTTP.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from penstock.bench.peers.prompt import Prompt
from penstock.bench.routing.cell import maker, recorded
from penstock.bench.routing.experiment import Experiment
from penstock.bench.routing.generators import GENERATORS
from penstock.bench.routing.trace import BLOCK_TOKENS, Arrival, UnknownFormat, fitting
from penstock.bench.routing.trace import speedup as speedup_for
from penstock.bench.sim.profiles import GPUS

# How often the length of the piece is fitted to its own work, so that its load is the one asked.
FITS: Final = 5
REQUESTS_MIN: Final = 10
# Answers are cut to this many tokens: what is compared is where requests go, which first tokens
# show, and `bench overhead` says what an event costs.
OUTPUT_TOKENS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Workload:
    """`name` is a generator's or a trace file; `length_s` in the engines' seconds."""

    name: str
    profile: str
    servers: int
    load: float
    length_s: float
    seed: int

    @property
    def title(self) -> str:
        return self.name if self.name in GENERATORS else Path(self.name).name.partition(".")[0]

    def arrivals(self) -> list[Arrival]:
        """In the engines' time, from 0 s on. Raises UnknownFormat, OSError.

        The piece is as long as its load makes it: dense work is played slower, and so less of it.
        """
        profile = GPUS[self.profile]
        window_s = self.length_s
        played: list[Arrival] = []
        for _ in range(FITS):
            known = self._known(window_s)
            faster = speedup_for(known, profile, self.servers, self.load)
            played = [each._replace(at_s=each.at_s / faster) for each in known]
            window_s = self.length_s * faster
        return [each for each in played if each.at_s < self.length_s]

    def _known(self, window_s: float) -> list[Arrival]:
        rng = Random(self.seed)
        if self.name in GENERATORS:
            known = GENERATORS[self.name](window_s, rng)
        else:
            known = recorded(Path(self.name), window_s, rng)
        known = fitting(known, GPUS[self.profile])
        if len(known) < REQUESTS_MIN:
            raise UnknownFormat(f"{self.title}: {len(known)} requests in {window_s:.0f} s of it")
        return [
            each._replace(
                output_tokens=min(each.output_tokens, OUTPUT_TOKENS_MAX),
                prefix=each.prefix[: each.prompt_tokens // BLOCK_TOKENS],
            )
            for each in known
        ]

    def prompts(self) -> list[Prompt]:
        salt = f"{self.title} {self.seed}"
        return [Prompt.of(each, salt) for each in self.arrivals()]

    def in_virtual_time(self, policy: str) -> dict[str, float]:
        """The figures that an experiment gives for a policy of ours."""
        experiment = Experiment(
            maker(policy), GPUS[self.profile], backends=self.servers, routers=1, seed=self.seed
        )
        return experiment.run(self.arrivals()).figures()
