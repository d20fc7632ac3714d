"""Policies by the name that the configuration gives them, one file each."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from balancing.policies.least_requests import LeastRequests
from balancing.policies.least_tokens import LeastTokens
from balancing.policies.peak_ewma import PeakEwmaLatency
from balancing.policies.policy import Policy
from balancing.policies.power_of_two import PowerOfTwo
from balancing.policies.random_choice import RandomChoice, WeightedRandom
from balancing.policies.round_robin import RoundRobin

POLICIES: Final[Mapping[str, Callable[[], Policy]]] = MappingProxyType(
    {
        "round_robin": RoundRobin,
        "random": RandomChoice,
        "weighted_random": WeightedRandom,
        "least_requests": LeastRequests,
        "power_of_two": PowerOfTwo,
        "peak_ewma": PeakEwmaLatency,
        "least_tokens": LeastTokens,
    }
)
