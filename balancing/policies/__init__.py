"""Policies by the name that the configuration gives them, one file each."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from balancing.backend import Backend
from balancing.policies.least_requests import LeastRequests
from balancing.policies.least_tokens import LeastTokens
from balancing.policies.peak_ewma import PeakEwmaLatency
from balancing.policies.policy import Policy
from balancing.policies.power_of_two import PowerOfTwo
from balancing.policies.random_choice import RandomChoice, WeightedRandom
from balancing.policies.round_robin import RoundRobin
from balancing.policies.session import Session
from balancing.policies.token_cost import TokenCost


def _alone(make: Callable[[], Policy]) -> Callable[[Sequence[Backend]], Policy]:
    """For a policy that need not know its pool beforehand."""
    return lambda backends: make()


# Each is made for one pool, of all its backends.
POLICIES: Final[Mapping[str, Callable[[Sequence[Backend]], Policy]]] = MappingProxyType(
    {
        "round_robin": _alone(RoundRobin),
        "random": _alone(RandomChoice),
        "weighted_random": _alone(WeightedRandom),
        "least_requests": _alone(LeastRequests),
        "power_of_two": _alone(PowerOfTwo),
        "peak_ewma": _alone(PeakEwmaLatency),
        "least_tokens": _alone(LeastTokens),
        "session": Session,
        "token_cost": _alone(TokenCost),
    }
)
