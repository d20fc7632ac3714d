"""Policies by the name that the configuration gives them."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from penstock.balancing.policies.policy import Policy
from penstock.balancing.policies.session import Session, Weighted
from penstock.balancing.policies.simple import (
    LeastRequests,
    LeastTokens,
    PeakEwmaLatency,
    PowerOfTwo,
    RandomChoice,
    RoundRobin,
    WeightedRandom,
)
from penstock.balancing.policies.token_cost import TokenCost


class Make(Protocol):
    """Makes a policy for one pool, of all its backends. `strict` is the setting of that name."""

    def __call__(self, backends: Sequence[Weighted], *, strict: bool = False) -> Policy: ...


def _alone(make: Callable[[], Policy]) -> Make:
    """For a policy that does not depend on its pool or on settings."""

    def made(backends: Sequence[Weighted], *, strict: bool = False) -> Policy:
        return make()

    return made


POLICIES: Final[Mapping[str, Make]] = MappingProxyType(
    {
        "round_robin": _alone(RoundRobin),
        "random": _alone(RandomChoice),
        "weighted_random": _alone(WeightedRandom),
        "least_requests": _alone(LeastRequests),
        "power_of_two": _alone(PowerOfTwo),
        "peak_ewma": _alone(PeakEwmaLatency),
        "least_tokens": _alone(LeastTokens),
        "session": lambda backends, *, strict=False: Session(backends),
        "token_cost": lambda backends, *, strict=False: TokenCost(strict=strict),
    }
)
