"""How long a simulated model answers by itself, and what clients do not see of it.

A real model decides this, and its server's parsers. Here the flags of `penstock sim` do.
"""

from dataclasses import dataclass
from random import Random
from typing import NamedTuple
from zlib import crc32

from penstock.bench.sim.job import Job


class Span(NamedTuple):
    """Both ends belong to it."""

    least: int
    most: int

    def draw(self, rng: Random) -> int:
        return rng.randint(self.least, self.most)


@dataclass(frozen=True, slots=True)
class Manner:
    """What one server does with every answer. The same prompt always has the same lengths."""

    answer_tokens: Span | None = None
    """Of an answer whose client states no limit."""
    hidden_tokens: Span | None = None
    """Generated before the first token that is shown: thoughts, or a call that a parser holds."""
    early_role: bool = False
    """A chat's role chunk comes before the engine has done anything."""

    def apply(self, job: Job, context_tokens: int) -> None:
        """Set the lengths of an answer, so that it fits the context with its prompt."""
        rng = Random(crc32(job.prompts[0].text))
        room = context_tokens - max(prompt.tokens for prompt in job.prompts)
        if self.answer_tokens is not None and not job.limited:
            job.max_tokens = self.answer_tokens.draw(rng)
            job.ends_itself = job.max_tokens <= room
        job.max_tokens = min(job.max_tokens, room)
        if self.hidden_tokens is not None and job.max_tokens:
            job.hidden_tokens = min(self.hidden_tokens.draw(rng), room - job.max_tokens)
        job.early_role = self.early_role
