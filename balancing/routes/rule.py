"""One route: when it matches, and where its requests go then."""

from dataclasses import dataclass
from typing import NamedTuple

from penstock.balancing.routes.match import Match
from penstock.balancing.routes.split import Split


class Target(NamedTuple):
    """A pool, and the name of the model that it is sent. None: the one that was asked for."""

    pool: str
    model: str | None


class Fallback(NamedTuple):
    """A target that is tried for some causes, in place of one that could not serve."""

    target: Target
    causes: frozenset[str]


class Mirror(NamedTuple):
    """A target that gets a copy of a share of the requests. `seed`: of the hash that draws them.

    `forward_authorization`: with the key of its client.
    """

    target: Target
    share: float
    seed: int
    forward_authorization: bool = False


class Changes(NamedTuple):
    """What is changed in a request: headers, the length of its answer, members that it lacks.

    `defaults` are JSON.
    """

    headers: tuple[tuple[bytes, bytes], ...] = ()
    max_tokens: int | None = None
    defaults: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(slots=True, eq=False)
class Rule:
    """A route. `refusal` is None unless it refuses its requests; it has no targets then.

    `canary`: the last target is one, whose share changes. `changes`: None if there are none, which
    costs nothing.
    """

    name: str
    match: Match
    targets: tuple[Target, ...]
    split: Split | None
    refusal: str | None = None
    sticky: str = "session"
    fallbacks: tuple[Fallback, ...] = ()
    mirror: Mirror | None = None
    changes: Changes | None = None
    spill: bool = False
    canary: bool = False
