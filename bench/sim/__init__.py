"""A simulated vLLM server: its HTTP dialects, its engine's arithmetic, and its ways to fail."""

from bench.sim.engine import Engine
from bench.sim.faults import Fault, FaultKind, Faults
from bench.sim.profiles import PROFILES, Profile
from bench.sim.prompt import Prompt, render
from bench.sim.server import SimServer
from bench.sim.text import expected

__all__ = [
    "PROFILES",
    "Engine",
    "Fault",
    "FaultKind",
    "Faults",
    "Profile",
    "Prompt",
    "SimServer",
    "expected",
    "render",
]
