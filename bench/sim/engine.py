"""The simulated engine: vLLM's scheduler in pure arithmetic.

A step gives every running sequence, oldest first, what it lacks of its tokens (one while it
decodes) from one token budget, then admits waiting ones; all tokens of a step come at its end.
A sequence that finds no KV block drives out the youngest that runs, which starts over later, at
the head of the queue; a step that drove one out admits nobody. A prompt is admitted when the
whole of it would fit; what the cache holds of its beginning costs nothing, but its last token is
always computed. (vLLM V1, `Scheduler.schedule`, first come first served.)

Time is an argument and nothing here sleeps: the caller asks for a step, waits for its duration,
then delivers its emissions.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from itertools import chain
from math import exp
from random import Random
from typing import Protocol

from penstock.bench.sim.profiles import Profile, Work


class Listener(Protocol):
    """Whom the engine's caller tells about a sequence's tokens."""

    def token(self) -> None: ...


@dataclass(slots=True, eq=False)
class Sequence:
    """One prompt and the tokens generated from it.

    `hashes` tell its full blocks apart, each with all before it: of the prompt and, where they
    are known beforehand, of the output. It hangs, still running, once it has `stall_at` tokens.
    """

    prompt_tokens: int
    max_tokens: int
    owner: Listener
    stall_at: int | None = None
    hashes: List[Hashable] = ()
    generated: int = field(default=0, init=False)
    computed: int = field(default=0, init=False)  # tokens in the KV cache
    known: int = field(default=0, init=False)  # its blocks that others may share
    unknown: int = field(default=0, init=False)  # its other blocks
    cached_tokens: int = field(default=0, init=False)  # of its first admission
    preemptions: int = field(default=0, init=False)
    arrived_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.prompt_tokens = max(1, self.prompt_tokens)

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.generated

    @property
    def done(self) -> bool:
        return self.generated >= self.max_tokens


class KvCache:
    """`capacity_blocks` blocks; a hash stands for a block's tokens and all before them.

    As in vLLM, a full block is known by the hash of all tokens up to its end, blocks in use are
    shared between sequences with the same beginning, and a known block that nobody uses keeps its
    content until its place is needed. Free blocks that nobody can share are taken first; of the
    others the one free for longest, and of one sequence the last block was freed first. (vLLM 0.32,
    `BlockPool.free_blocks`.)
    """

    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self._users: dict[Hashable, int] = {}  # of known blocks in use
        self._unknown = 0  # blocks in use whose content nobody can share
        self._blank = capacity_blocks  # free, with nothing that anybody could share
        self._freed: OrderedDict[Hashable, None] = OrderedDict()  # known, oldest first

    @property
    def free(self) -> int:
        """Blocks that can be taken."""
        return self._blank + len(self._freed)

    @property
    def usage(self) -> float:
        """Share in use, 0 to 1."""
        return 1.0 - self.free / self.capacity_blocks

    def cached(self, hashes: List[Hashable]) -> tuple[int, int]:
        """(leading blocks of these that are here, how many of them are free ones)."""
        hits = free = 0
        for each in hashes:
            if each in self._freed:
                free += 1
            elif each not in self._users:
                break
            hits += 1
        return hits, free

    def share(self, hashes: List[Hashable]) -> None:
        """Use blocks that are here."""
        for each in hashes:
            self._freed.pop(each, None)
            self._users[each] = self._users.get(each, 0) + 1

    def take(self, count: int) -> None:
        """Use `count` more blocks, which forget what they held."""
        assert count <= self.free
        self._unknown += count
        blank = min(count, self._blank)
        self._blank -= blank
        for _ in range(count - blank):
            self._freed.popitem(last=False)

    def forget(self) -> None:
        """Every free block is as if never used; those in use stay."""
        self._blank += len(self._freed)
        self._freed.clear()

    def know(self, block: Hashable) -> bool:
        """A taken block is full and can be shared; False when another already holds the same."""
        if block in self._users or block in self._freed:
            return False
        self._unknown -= 1
        self._users[block] = 1
        return True

    def release(self, known: List[Hashable], unknown: int) -> None:
        """A sequence lets go of its blocks: those it shares, first to last, and others."""
        self._unknown -= unknown
        self._blank += unknown
        for block in reversed(known):
            users = self._users[block] - 1
            if users:
                self._users[block] = users
            else:
                del self._users[block]
                self._freed[block] = None
        assert self._unknown >= 0


class Engine:
    """A queue, a batch, and the KV blocks they hold."""

    def __init__(self, profile: Profile, rng: Random | None = None) -> None:
        """`rng` is for the noise of a profile that has some."""
        assert not profile.noise or rng is not None
        self.profile = profile
        self._rng = rng
        self.cache = KvCache(profile.kv_blocks)
        # As ordered sets: first come, first served, and removal in O(1).
        self._waiting: OrderedDict[Sequence, None] = OrderedDict()
        self._running: dict[Sequence, None] = {}
        self._finished: list[Sequence] = []
        self.requests_total = self.aborted_total = self.finished_total = self.admitted_total = 0
        self.prompt_tokens_total = self.generation_tokens_total = self.preemptions_total = 0
        self.cache_queries_total = self.cache_hits_total = 0  # tokens looked for, and found
        self.steps_total = self.step_tokens_total = 0  # and what these steps computed
        self.queue_time_s_total = 0.0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def sequences(self) -> Iterator[Sequence]:
        """All that are here, those that run first."""
        return chain(self._running, self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache in use, 0 to 1."""
        return self.cache.usage

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    def submit(self, sequence: Sequence, now_s: float) -> None:
        """Queue a sequence; the next step may admit it."""
        assert sequence.prompt_tokens <= self.profile.context_tokens, "it would wait for ever"
        sequence.arrived_s = now_s
        self.requests_total += 1
        self._waiting[sequence] = None

    def abort(self, sequence: Sequence) -> bool:
        """Drop a sequence and its blocks at once; False when it is no longer here."""
        if sequence in self._waiting:
            del self._waiting[sequence]
        elif sequence in self._running:
            self._release(sequence)
        else:
            return False
        self.aborted_total += 1
        return True

    def step(self, now_s: float) -> tuple[float, list[Sequence]]:
        """Run one step: its duration, and the sequences that have one more token at its end.

        Finished sequences leave when the next step begins, so a caller must ask again after
        every step. An empty list means that there is nothing to do until something is submitted.
        """
        self._retire()
        work = Work()
        preemptions = self.preemptions_total
        scheduled = self._continue(work)
        if self.preemptions_total == preemptions:
            scheduled += self._admit(work, now_s)
        if not scheduled:
            return 0.0, []
        emissions = [
            sequence
            for sequence in scheduled
            if sequence.computed == sequence.tokens and sequence.generated != sequence.stall_at
        ]
        for sequence in emissions:
            self._generate(sequence)
        self.steps_total += 1
        self.step_tokens_total += work.tokens
        return self.profile.step_s(work) * self._noise(), emissions

    def _noise(self) -> float:
        """A factor on a step's time."""
        sigma = self.profile.noise
        return exp(self._rng.gauss(0.0, sigma)) if self._rng is not None and sigma else 1.0

    def _continue(self, work: Work) -> list[Sequence]:
        """Give running sequences what they lack, oldest first."""
        scheduled = []
        for sequence in tuple(self._running):
            budget = self._budget(work, sequence.tokens - sequence.computed)
            if budget and sequence in self._running and self._grow(sequence, budget):
                self._compute(sequence, budget, work)
                scheduled.append(sequence)
        return scheduled

    def _admit(self, work: Work, now_s: float) -> list[Sequence]:
        """Begin with waiting sequences while budget, places and KV blocks last."""
        admitted = []
        while self._waiting and len(self._running) < self.profile.max_num_seqs:
            sequence = next(iter(self._waiting))
            hits, free_hits = self._hits(sequence)
            hit_tokens = hits * self.profile.block_tokens
            budget = self._budget(work, sequence.tokens - hit_tokens)
            whole = self._blocks(sequence.tokens) - hits
            if not budget or whole > self.cache.free - free_hits:
                break
            del self._waiting[sequence]
            self._running[sequence] = None
            self.cache.share(sequence.hashes[:hits])
            sequence.known = hits
            sequence.computed = hit_tokens
            if not sequence.preemptions:
                self._count_admission(sequence, hit_tokens, now_s)
            self._grow(sequence, budget)
            self._compute(sequence, budget, work)
            admitted.append(sequence)
        return admitted

    def _count_admission(self, sequence: Sequence, hit_tokens: int, now_s: float) -> None:
        sequence.cached_tokens = hit_tokens
        self.admitted_total += 1
        if self.profile.prefix_caching:
            self.cache_queries_total += sequence.tokens
            self.cache_hits_total += hit_tokens
        self.queue_time_s_total += now_s - sequence.arrived_s

    def _hits(self, sequence: Sequence) -> tuple[int, int]:
        """What the cache holds of its full blocks; its last token is computed in any case."""
        full = (sequence.tokens - 1) // self.profile.block_tokens
        return self.cache.cached(sequence.hashes[:full])

    def _budget(self, work: Work, wanted: int) -> int:
        """How many of the tokens that a sequence wants this step still has for it."""
        return min(wanted, self.profile.max_batched_tokens - work.tokens)

    def _grow(self, sequence: Sequence, count: int) -> bool:
        """Take the blocks for `count` more tokens; False if it was itself driven out for want."""
        held = sequence.known + sequence.unknown
        lacking = self._blocks(sequence.computed + count) - held
        while lacking > self.cache.free:
            victim = next(reversed(self._running))
            self._release(victim)
            victim.computed = 0
            victim.preemptions += 1
            self.preemptions_total += 1
            self._waiting[victim] = None
            self._waiting.move_to_end(victim, last=False)
            if victim is sequence:
                return False
        if lacking > 0:
            self.cache.take(lacking)
            sequence.unknown += lacking
        return True

    def _compute(self, sequence: Sequence, count: int, work: Work) -> None:
        work.add(count, sequence.computed, decodes=sequence.computed >= sequence.prompt_tokens)
        sequence.computed += count
        full = min(sequence.computed // self.profile.block_tokens, len(sequence.hashes))
        # Known blocks are the first ones: where another holds the same, the rest stays unknown.
        while sequence.known < full and self.cache.know(sequence.hashes[sequence.known]):
            sequence.known += 1
            sequence.unknown -= 1

    def _generate(self, sequence: Sequence) -> None:
        if not sequence.generated and not sequence.preemptions:
            self.prompt_tokens_total += sequence.prompt_tokens
        if not sequence.done:
            sequence.generated += 1
            self.generation_tokens_total += 1
        if sequence.done:
            self._finished.append(sequence)

    def _retire(self) -> None:
        for sequence in self._finished:
            if sequence in self._running:
                self._release(sequence)
                self.finished_total += 1
        self._finished.clear()

    def _release(self, sequence: Sequence) -> None:
        del self._running[sequence]
        self.cache.release(sequence.hashes[: sequence.known], sequence.unknown)
        sequence.known = sequence.unknown = 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_tokens)
