"""What the prompts of running streams have in common at one engine, which holds it once.

Blocks are chained hashes (`prompt_blocks`), so prompts with an equal block are equal up to there.
Every STRIDE-th block of a prompt is counted: a long prompt costs little, and a common beginning is
known up to a few hundred tokens. Estimates of the same text differ from client to client. What is
held once counts as their mean, and for a new prompt its own estimate: no client makes the prompts
of others look smaller than they are.
"""

from collections.abc import Hashable
from typing import Final

from penstock.balancing.ask import Ask

# 640 tokens, and for the longest prompts 512 blocks to count.
STRIDE: Final = 4


class HeldBlocks:
    """`shared_tokens`: those that are counted for more than one stream."""

    __slots__ = ("_held", "shared_tokens")

    def __init__(self) -> None:
        # By block: how many streams hold it, and the tokens since the counted one before it, as
        # estimated for each of them, added up.
        self._held: dict[Hashable, tuple[int, float]] = {}
        self.shared_tokens = 0.0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, ask: Ask) -> None:
        """A stream holds its prompt."""
        tokens = STRIDE * ask.block_tokens
        for block in _counted(ask):
            count, total = self._held.get(block, (0, 0.0))
            self._held[block] = count + 1, total + tokens
            if count:
                self.shared_tokens += tokens + total / count - (total + tokens) / (count + 1)

    def remove(self, ask: Ask) -> None:
        """That stream has ended."""
        tokens = STRIDE * ask.block_tokens
        for block in _counted(ask):
            count, total = self._held[block]
            if count == 1:
                del self._held[block]
            else:
                self._held[block] = count - 1, total - tokens
                self.shared_tokens -= tokens + (total - tokens) / (count - 1) - total / count
        if not self._held:
            self.shared_tokens = 0.0  # no rounding stays

    def tokens_of(self, ask: Ask) -> float:
        """How many tokens of the beginning of this prompt streams hold already."""
        blocks = 0
        for block in _counted(ask):
            if block not in self._held:
                break
            blocks += 1
        return min(STRIDE * ask.block_tokens * blocks, ask.prompt_tokens - 1.0)


def _counted(ask: Ask) -> tuple[int, ...]:
    return ask.blocks[STRIDE - 1 : ask.text_blocks : STRIDE]
