"""One route: when it matches, and where its requests go then."""

from penstock.balancing.routes.match import Match
from penstock.balancing.routes.split import Split


class Target:
    """A pool, and the name of the model that it is sent. None: the one that was asked for."""

    __slots__ = ("model", "pool")

    def __init__(self, pool: str, model: str | None) -> None:
        self.pool = pool
        self.model = model

    def same(self, other: "Target") -> bool:
        """Whether both are the same."""
        return self.pool == other.pool and self.model == other.model


class Fallback:
    """A target that is tried for some causes, in place of one that could not serve."""

    __slots__ = ("causes", "target")

    def __init__(self, target: Target, causes: frozenset[str]) -> None:
        self.target = target
        self.causes = causes


class Mirror:
    """A target that gets a copy of a share of the requests. `seed`: of the hash that draws them.

    `forward_authorization`: with the key of its client.
    """

    __slots__ = ("forward_authorization", "seed", "share", "target")

    def __init__(
        self, target: Target, share: float, seed: int, *, forward_authorization: bool = False
    ) -> None:
        self.forward_authorization = forward_authorization
        self.target = target
        self.share = share
        self.seed = seed


class Changes:
    """What is changed in a request: headers, the length of its answer, members that it lacks.

    `defaults` are JSON.
    """

    __slots__ = ("defaults", "headers", "max_tokens")

    def __init__(
        self,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        max_tokens: int | None = None,
        defaults: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self.headers = headers
        self.max_tokens = max_tokens
        self.defaults = defaults


class Rule:
    """A route. `refusal` is None unless it refuses its requests; it has no targets then."""

    __slots__ = (
        "canary",
        "changes",
        "fallbacks",
        "match",
        "mirror",
        "name",
        "refusal",
        "spill",
        "split",
        "sticky",
        "targets",
    )

    def __init__(
        self,
        name: str,
        match: Match,
        targets: tuple[Target, ...],
        split: Split | None,
        *,
        refusal: str | None = None,
        sticky: str = "session",
        fallbacks: tuple[Fallback, ...] = (),
        mirror: Mirror | None = None,
        changes: Changes | None = None,
        spill: bool = False,
        canary: bool = False,
    ) -> None:
        """`canary`: the last target is one, whose share changes.

        `changes`: None if there are none, which costs nothing."""
        self.name = name
        self.match = match
        self.targets = targets
        self.split = split
        self.refusal = refusal
        self.sticky = sticky
        self.fallbacks = fallbacks
        self.mirror = mirror
        self.changes = changes
        self.spill = spill
        self.canary = canary
