"""A session's requests go to one backend, whose cache holds their common prefix.

Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016). The load is counted
in tokens. A session goes to its own place on the ring. It goes to the next place while that
backend is unfit or holds too much. So one hot session spreads and does not overload its backend,
and the absence of a backend moves only the sessions of that backend. They come back with it.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain
from random import Random
from typing import ClassVar, Final, Protocol

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.policies.policy import Explanation, Part, Policy, SimplePolicy
from penstock.balancing.policies.simple import LeastTokens

# How far above its fair share of the tokens a backend may be before its sessions move on.
# A spilled turn is prefilled anew. Of the hits of unbounded stickiness, 0.25 (usual where requests
# cost alike) kept 0.90-0.95 and 0.5 kept 0.96-0.97 (tests/sim/conversations.py).
EPSILON: Final = 0.5
# One engine step's budget on an H100 (vLLM's `max_num_batched_tokens`). Nobody waits below one step
# of work. Without it every backend of an idle fleet would be above the mean of zero.
SLACK_TOKENS: Final = 8_192
# Beside a session's own place, which costs 1.
ELSEWHERE: Final = 2.0


class Weighted(Protocol):
    """A backend, or the settings of one."""

    @property
    def name(self) -> str: ...
    @property
    def weight(self) -> float: ...


class Session(SimplePolicy):
    """Explicit affinity. A request without a key is placed as `least_tokens` would place it."""

    needs_sessions: ClassVar[bool] = True

    def __init__(self, backends: Sequence[Weighted]) -> None:
        """`backends` are all of the pool, fit or not. They make the ring."""
        self._ring = Ring({backend.name: backend.weight for backend in backends})
        self._keyless = LeastTokens()

    def home(self, ask: Ask) -> str | None:
        assert ask.session is not None
        return self._ring.home(ask.session)

    def choose(self, fit: Sequence[Backend], ask: Ask, now_s: float, rng: Random) -> Backend:
        place = self._place(fit, ask, now_s)
        return place if place is not None else self._keyless.choose(fit, ask, now_s, rng)

    def costs(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Sequence[float]:
        """A session's own place costs 1, and any other one ELSEWHERE."""
        place = self._place(fit, ask, now_s)
        if place is None:
            return self._keyless.costs(fit, ask, now_s)
        return [1.0 if backend is place else ELSEWHERE for backend in fit]

    def explain(self, fit: Sequence[Backend], ask: Ask, now_s: float) -> Explanation:
        full: dict[Backend, str] = {}
        place = self._place(fit, ask, now_s, full)
        if place is not None:
            first = f"{place.name} comes first on the ring for this session"
            parts = [Part(why_not=full.get(backend, first)) for backend in fit]
            parts[fit.index(place)] = Part()
            return Explanation([place], parts)
        best = self._keyless.explain(fit, ask, now_s).best
        return Explanation(best, [Part(why_not="" if b in best else full.get(b, "")) for b in fit])

    def _place(
        self, fit: Sequence[Backend], ask: Ask, now_s: float, full: dict[Backend, str] | None = None
    ) -> Backend | None:
        """The first on the ring with room for its session. None: it has none, or all are full.

        Those before it are added to `full`, with the reason.
        """
        if ask.session is None:
            return None
        by_name, allowed = _allowed(fit)
        for name in self._ring.walk(ask.session):
            candidate = by_name.get(name)
            if candidate is not None:
                bound = allowed * candidate.weight + SLACK_TOKENS
                held = held_tokens(candidate)
                if held + candidate.penalty_tokens(now_s, ask.client) <= bound:
                    return candidate
                if full is not None:
                    why = f"it holds {held:,} tokens, more than its bound of {int(bound):,}"
                    full[candidate] = "it failed a short time ago" if held <= bound else why
        return None

    def follow(self, new: Policy, backends: Sequence[Backend]) -> None:
        assert isinstance(new, Session)
        self._ring = new._ring


def held_tokens(backend: Backend) -> int:
    """The load that is bounded: prompt tokens queued and tokens of open streams."""
    return backend.queued_prefill_tokens + backend.active_decode_tokens


def _allowed(fit: Sequence[Backend]) -> tuple[dict[str, Backend], float]:
    """The backends by name, and how many tokens each may hold for a weight of 1, slack apart.

    Someone of `fit` is at or below the mean, so somebody always has room, unless all who could
    have it failed lately. A penalty for failures counts as tokens there, but not in the mean.
    """
    weight = 0.0
    tokens = 0
    by_name: dict[str, Backend] = {}
    for backend in fit:
        by_name[backend.name] = backend
        weight += backend.weight
        tokens += held_tokens(backend)
    return by_name, (1.0 + EPSILON) * tokens / weight


# Points at weight 1, or at the power of two below the largest weight. Shares then differ from the
# fair ones by 1/sqrt(256) = 6 % (standard deviation). ketama's 160 points give 8 %. Twice as many
# points would gain little.
POINTS: Final = 256
# The limit for all names, 10 bytes a point: 1,024 backends of weight 1.
POINTS_MAX: Final = 262_144
_DIGEST_POINTS: Final = 8  # a digest of 64 bytes makes eight points


class Ring:
    """A consistent-hash ring: the circle for `weights` by name, in any order.

    Each name has points on a circle of 64 bits, in proportion to its weight. A key belongs to the
    first point after its own. A name that joins takes keys only for itself, and one that leaves
    gives up only its own keys, because the points of the others stay. Positions come from BLAKE2,
    so they are the same in every process and after every restart (Python's `hash` is salted).
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._names = sorted(weights)
        # Use powers of two, which a joining name seldom changes. If there are too many points,
        # halve them all instead of cutting some, so that weights keep their proportions.
        largest = int(max(weights.values(), default=1.0))
        each = POINTS / 2.0 ** max(0, largest.bit_length() - 1)
        while each > 1 and each * sum(weights.values()) > POINTS_MAX:
            each /= 2
        circle = sorted(
            (point, owner)
            for owner, name in enumerate(self._names)
            for point in _points_of(name, max(1, round(each * weights[name])))
        )
        self._points = array("Q", (point for point, _ in circle))
        self._owners = array("H", (owner for _, owner in circle))

    def __len__(self) -> int:
        return len(self._points)

    def home(self, key: str) -> str:
        """The name to which the key belongs. The ring must not be empty."""
        return next(self.walk(key))

    def walk(self, key: str) -> Iterator[str]:
        """Every name once, beginning with the key's own. The next one takes over from it."""
        digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        start = bisect_right(self._points, int.from_bytes(digest, "big"))
        seen: set[int] = set()
        for index in chain(range(start, len(self._owners)), range(start)):
            owner = self._owners[index]
            if owner not in seen:
                yield self._names[owner]
                seen.add(owner)
                if len(seen) == len(self._names):
                    return


def _points_of(name: str, count: int) -> Iterator[int]:
    """The first `count` points of a name. Fewer points are the beginning of more."""
    for block in range(-(-count // _DIGEST_POINTS)):
        digest = blake2b(f"{name}#{block}".encode()).digest()
        for point in range(min(_DIGEST_POINTS, count - block * _DIGEST_POINTS)):
            yield int.from_bytes(digest[8 * point : 8 * point + 8], "big")
