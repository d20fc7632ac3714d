"""A backend's prefix cache as we think it is, and what one request expects and leaves there.

The index has the prompts that were computed there. Other blocks wait beside it until their
request's first token shows that the engine has computed them. The number of their tokens is an
estimate until the answer reports it.

An engine may hold what we think is new: one text can be spelt in many ways, and other clients may
have sent it past us. Such text displaces nothing in the engine. So its blocks count as little as
possible in the index.

Blocks are hashes of text, each chained to all blocks before it (`blocks`). So the leading blocks of
a prompt are held together or not at all, and a binary search finds the longest match.
"""

from collections.abc import Hashable
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.balancing.engine_report import EngineReport

if TYPE_CHECKING:
    from penstock.balancing.ask import Ask

# A block of blocks.BLOCK_BYTES, at the usual 3.2 bytes for a token.
BLOCK_TOKENS: Final = 160
# Until an engine reports its size: the 400,000 tokens of one on a large GPU.
BLOCKS_PRIOR: Final = 400_000 // BLOCK_TOKENS
# The limit, whatever an engine reports: 16 million tokens of a few dozen large GPUs, 17 MiB here.
BLOCKS_MAX: Final = 100_000
# Only the youngest waiting prompts under the same block are compared, so that choosing stays cheap
# however many prompts begin alike.
COMPARED_MAX: Final = 32


class PrefixIndex:
    """The blocks of computed prompts: as many as the engine's cache holds, up to twice that.

    An engine forgets what was not used for longest. Here two generations do the same. Used blocks
    are put into the young one. When it holds as much as the engine, it becomes the old one, and
    the previous old one is forgotten. Each use costs one `set.update`, and only the hash of a block
    is kept. (An index of half to all of the cache loses a third of the hits when conversations fill
    the caches.)

    A block of text with few tokens fills as little of the index as of the engine's cache. A
    megabyte of blanks must not make us forget what the engine still has.
    """

    def __init__(self, capacity: int = BLOCKS_PRIOR) -> None:
        self.capacity = capacity
        self.turns = 0  # how often the old generation was forgotten
        # Sets of integers. With that type mypyc would box and unbox them at every look.
        self._young: set[Hashable] = set()
        self._old: set[Hashable] = set()
        self._filled = 0.0  # by the young generation, in blocks of BLOCK_TOKENS

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def held(self, blocks: tuple[Hashable, ...]) -> int:
        """How many of these leading blocks are in the index."""
        return _leading(blocks, self._young, self._old)

    def use(self, blocks: tuple[Hashable, ...], weight: float = 1.0) -> float:
        """Put a prompt's blocks in; each fills `weight` of a block. Returns what they filled."""
        blocks = blocks[: int(self.capacity / weight)]
        room = (self.capacity - self._filled) / weight
        if len(blocks) > room and len(blocks) - _leading(blocks, self._young, _NONE) > room:
            self._turn()
        before = len(self._young)
        self._young.update(blocks)
        filled = (len(self._young) - before) * weight
        self._filled += filled
        return filled

    def correct(self, blocks: tuple[Hashable, ...], kept: int, less: float, turn: int) -> None:
        """Blocks put in during `turn` fill `less`. Those after the first `kept` do not exist."""
        if turn == self.turns:
            self._filled = max(0.0, self._filled - less)
            if kept < len(blocks):
                self._young.difference_update(blocks[kept:])

    def resize(self, blocks: int) -> None:
        """Set the size of the engine's cache, in blocks."""
        self.capacity = min(max(1, blocks), BLOCKS_MAX)

    def clear(self) -> None:
        """The engine restarted: its cache is empty."""
        self._turn()
        self._old = set()

    def _turn(self) -> None:
        self._old = self._young
        self._young = set()
        self._filled = 0.0
        self.turns += 1


class WaitingBlocks:
    """The blocks of prompts that were sent and are not computed yet.

    They count for the choice, so that a burst of equal prompts goes to one backend. If their
    request is refused, fails or is given up, they go with it and have displaced nothing.

    A prompt waits under its first block that is not in the index. Another prompt with the same
    continuation looks there, and finds few others.
    """

    def __init__(self) -> None:
        self._groups: dict[Hashable, dict[object, tuple[Hashable, ...]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def put(self, owner: object, blocks: tuple[Hashable, ...], held: int) -> None:
        """Add a prompt. Its first `held` blocks are in the index, but not all of them."""
        self._groups.setdefault(blocks[held], {})[owner] = blocks

    def remove(self, owner: object, blocks: tuple[Hashable, ...], held: int) -> None:
        """Remove a prompt that was put."""
        group = self._groups[blocks[held]]
        del group[owner]
        if not group:
            del self._groups[blocks[held]]

    def held(self, blocks: tuple[Hashable, ...], held: int) -> int:
        """How many leading blocks the index and one waiting prompt hold. The index holds `held`."""
        group = self._groups.get(blocks[held])
        if group is None:
            return held
        best = held
        for waiting in islice(reversed(group.values()), COMPARED_MAX):
            if best < len(waiting) and waiting[best] == blocks[best]:
                best = _common(blocks, waiting, best)
                if best == len(blocks):
                    break
        return best


_NONE: Final[set[Hashable]] = set()


def _leading(blocks: tuple[Hashable, ...], young: set[Hashable], old: set[Hashable]) -> int:
    """How many of these leading blocks are in either set."""
    if not blocks or not (blocks[0] in young or blocks[0] in old):
        return 0
    held, beyond = 1, len(blocks) + 1
    while beyond - held > 1:
        middle = (held + beyond) // 2
        if blocks[middle - 1] in young or blocks[middle - 1] in old:
            held = middle
        else:
            beyond = middle
    return held


def _common(blocks: tuple[Hashable, ...], others: tuple[Hashable, ...], known: int) -> int:
    """How many leading blocks are equal, more than `known`. Each hash covers all before it."""
    same, beyond = known + 1, min(len(blocks), len(others)) + 1
    while beyond - same > 1:
        middle = (same + beyond) // 2
        if blocks[middle - 1] == others[middle - 1]:
            same = middle
        else:
            beyond = middle
    return same


# A block counts as at least a quarter of BLOCK_TOKENS, so that an index never holds more than four
# times its capacity. A text of even fewer tokens (blanks, one letter again and again) is cut to as
# many blocks as it fills.
WEIGHT_MIN: Final = 0.25
# Estimates are rarely wrong by more. One backend's absurd count must not be believed.
OFF_MAX: Final = 4
# If the reported prompt is below this share of the estimate, the room of the rest is given back.
OFF_MIN: Final = 0.7


class PrefixCache:
    """The cache of one backend. Only the claims of leases change its content."""

    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.keeps = True  # False: the engine says that it keeps nothing
        self.waiting = WaitingBlocks()

    def held(self, ask: "Ask") -> int:
        """How many of the request's leading blocks are in the cache, or will be in time."""
        if not self.keeps:
            return 0
        held = self.index.held(ask.blocks)
        return self.waiting.held(ask.blocks, held) if held < len(ask.blocks) else held

    def cached_tokens(self, ask: "Ask") -> int:
        """The prompt tokens that are probably in the cache."""
        held = self.held(ask) if ask.reads_cache else 0
        return ask.leading_tokens(held) if held else 0

    def take(self, report: EngineReport) -> None:
        """Take the engine's metrics."""
        if report.kv_tokens is not None:
            self.index.resize(report.kv_tokens // BLOCK_TOKENS)
        self.keeps = report.keeps_prefixes
        if not report.awake or not self.keeps:
            self.forget()

    def forget(self) -> None:
        """The engine's cache is empty."""
        self.index.clear()


class CacheClaim:
    """The claim of one prompt with blocks, from the choice of its backend to its end.

    `cached_tokens`: how much of the prompt the cache should hold.
    """

    def __init__(self, cache: PrefixCache, ask: "Ask") -> None:
        self._cache = cache
        self._ask = ask
        self._filled = 0.0
        self._found = 0.0  # blocks that the engine had and the index had not
        self._turn = -1  # the index's turn when the blocks were put there
        blocks = ask.blocks
        self._index_held = held = cache.index.held(blocks)
        self._waits = held < len(blocks)
        if self._waits:
            held = cache.waiting.held(blocks, held)
            cache.waiting.put(self, blocks, self._index_held)
        self._held = held
        self.cached_tokens = ask.leading_tokens(held) if held and ask.reads_cache else 0

    def first_token(self, *, too_soon: bool) -> None:
        """The first token has come. `too_soon`: the engine had the prompt, in another spelling.
        Otherwise it has computed it."""
        if too_soon:
            self._found = float(len(self._ask.blocks) - self._index_held)
        else:
            self._put(self._ask.prompt_tokens)

    @property
    def computed_share(self) -> float:
        """How much of what was thought new the engine computed, 0 to 1. The rest it had."""
        new = len(self._ask.blocks) - self._held
        return max(0.0, 1.0 - self._found / new) if self._found and new else 1.0

    def complete(self, prompt_tokens: int) -> None:
        """The answer is whole. `prompt_tokens`: the reported length of the prompt, 0 for none."""
        thought, blocks = self._ask.prompt_tokens, self._ask.blocks
        if self._turn < 0:
            self._put(prompt_tokens or thought)
        elif 0 < prompt_tokens < OFF_MIN * thought:
            weight, kept = _filled(blocks, thought)
            told_weight, told_kept = _filled(blocks, prompt_tokens)
            less = 1.0 - told_weight * told_kept / (weight * kept)
            self._cache.index.correct(blocks, told_kept, self._filled * less, self._turn)
        elif self._found:
            less = min(self._found, self._filled * (1.0 - WEIGHT_MIN))
            self._cache.index.correct(blocks, len(blocks), less, self._turn)

    def settle(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Compare with the backend's counts: of the prompt, and of cached tokens."""
        # Scale to the reported prompt: an error of the estimate is not the cache's fault.
        expected = self.cached_tokens
        told = expected * prompt_tokens // self._ask.prompt_tokens if expected else 0
        self._found = max(0, cached_tokens - min(told, OFF_MAX * expected)) / BLOCK_TOKENS

    def end(self) -> None:
        """The request is over: its blocks wait no more."""
        if self._waits:
            self._wait_no_more()

    def _put(self, prompt_tokens: int) -> None:
        if self._waits:
            self._wait_no_more()
        blocks, index = self._ask.blocks, self._cache.index
        if prompt_tokens >= len(blocks) * BLOCK_TOKENS and not self._found:
            self._filled = index.use(blocks)
        else:
            weight, kept = _filled(blocks, prompt_tokens)
            if self._found:
                found_share = self._found / max(1, len(blocks) - self._index_held)
                weight = max(WEIGHT_MIN, weight * (1.0 - found_share))
            self._filled = index.use(blocks[:kept], weight)
        self._turn = index.turns

    def _wait_no_more(self) -> None:
        self._waits = False
        self._cache.waiting.remove(self, self._ask.blocks, self._index_held)


def _filled(blocks: tuple[int, ...], prompt_tokens: int) -> tuple[float, int]:
    """What part of an ordinary block each block is, and how many blocks there can be at most."""
    weight = min(1.0, max(WEIGHT_MIN, prompt_tokens / (len(blocks) * BLOCK_TOKENS)))
    return weight, min(len(blocks), max(1, int(prompt_tokens / (WEIGHT_MIN * BLOCK_TOKENS))))
