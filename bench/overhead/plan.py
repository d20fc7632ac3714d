"""How much is measured: the sizes of the rounds.

The default takes five to six minutes, `quick` below one; a quick run shows
that everything works, its figures are rough.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of one run. A round measures every peer once, each time in another order."""

    rounds: int = 5
    wide_rounds: int = 3
    streams: int = 300
    events_per_s: int = 50
    wide_streams: int = 2_000
    wide_events_per_s: int = 20
    ramp_s: float = 1.0
    wide_ramp_s: float = 3.0
    settle_s: float = 0.5
    window_s: float = 3.0
    wide_window_s: float = 4.0
    connections: int = 16
    requests_per_s: int = 2_000
    request_window_s: float = 2.5
    turns: int = 300
    repeats_s: float = 30.0  # to take disturbed measurements again


DEFAULT = Plan()
QUICK = replace(
    DEFAULT,
    rounds=1,
    wide_rounds=1,
    ramp_s=0.5,
    wide_ramp_s=2.0,
    settle_s=0.3,
    window_s=1.5,
    wide_window_s=1.5,
    request_window_s=1.0,
    turns=200,
    repeats_s=8.0,
)
