"""How much is measured: the loads of a run, and how often each is repeated.

The default takes some seven minutes with all peers, `quick` three; a quick run shows that
everything works, its figures are rough.
"""

from dataclasses import dataclass, replace
from typing import Final

# Rounds at most of what shows enough in few: one stream, long prompts, thousands of streams.
RARE: Final = 3


@dataclass(frozen=True, slots=True)
class Streams:
    """So many streams open at once, measured in a window of all."""

    metric: str
    streams: int
    events_per_s: int
    ramp_s: float
    settle_s: float
    window_s: float
    rounds: int

    @property
    def title(self) -> str:
        many = f"{self.streams:,} stream{'s' if self.streams > 1 else ''}"
        return f"{many} x {self.events_per_s}/s"


@dataclass(frozen=True, slots=True)
class Requests:
    """So many plain requests a second; `prompt_bytes` of 0 is a short question.

    0 requests a second: a closed loop, in which each answer is followed by the next request.
    """

    metric: str
    requests_per_s: int
    window_s: float
    rounds: int
    prompt_bytes: int = 0
    connections: int = 16
    settle_s: float = 0.5

    @property
    def title(self) -> str:
        if not self.requests_per_s:
            return f"small JSON request, closed loop of {self.connections}"
        if not self.prompt_bytes:
            return "small JSON request"
        return f"request with a prompt of {self.prompt_bytes // 1_000:,} KB"


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of one run. A round measures every peer once, each time in another order."""

    rounds: int
    streams: tuple[Streams, ...]
    requests: tuple[Requests, ...]
    wide: Streams
    turns: int = 300
    repeats_s: float = 30.0  # to take disturbed measurements again

    @property
    def loads(self) -> tuple[Streams | Requests, ...]:
        return (*self.streams, *self.requests, self.wide)

    def of_rounds(self, rounds: int) -> "Plan":
        """The same with other rounds; what takes long is not done more than RARE times."""
        rare = min(rounds, RARE)
        return replace(
            self,
            rounds=rounds,
            streams=tuple(
                replace(each, rounds=rounds if each.streams > 1 else rare) for each in self.streams
            ),
            requests=tuple(
                replace(each, rounds=rare if each.prompt_bytes else rounds)
                for each in self.requests
            ),
            wide=replace(self.wide, rounds=rare),
        )


DEFAULT: Final = Plan(
    rounds=2,
    streams=(
        Streams("stream", 300, 50, ramp_s=1.0, settle_s=0.5, window_s=3.0, rounds=2),
        Streams("single", 1, 50, ramp_s=0.0, settle_s=0.3, window_s=2.0, rounds=1),
    ),
    requests=(
        Requests("request", 2_000, window_s=2.5, rounds=2),
        Requests("closed", 0, window_s=1.5, rounds=2),
        Requests("prompt_2k", 1_000, window_s=1.5, rounds=1, prompt_bytes=2_000),
        Requests("prompt_220k", 100, window_s=1.5, rounds=1, prompt_bytes=220_000),
        Requests("prompt_1m", 20, window_s=2.0, rounds=1, prompt_bytes=1_000_000),
    ),
    wide=Streams("wide", 2_000, 20, ramp_s=3.0, settle_s=1.0, window_s=4.0, rounds=2),
)
QUICK: Final = replace(
    DEFAULT,
    rounds=1,
    streams=tuple(replace(each, rounds=1, window_s=1.5) for each in DEFAULT.streams),
    requests=tuple(replace(each, rounds=1, window_s=1.0) for each in DEFAULT.requests),
    wide=replace(DEFAULT.wide, rounds=1, ramp_s=2.0, window_s=1.5),
    turns=200,
    repeats_s=8.0,
)
