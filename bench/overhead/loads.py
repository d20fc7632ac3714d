"""The loads that the client can make, what it reports, and how much is measured.

A load travels to the client as JSON, as its argument; a report comes back on its stdout.
"""

from dataclasses import dataclass, replace
from typing import Final

import msgspec
from msgspec.structs import replace as changed

# Rounds at most of what shows enough in few: one stream, long prompts, thousands of streams.
RARE: Final = 3


class StreamLoad(msgspec.Struct, tag=True, frozen=True):
    """Concurrent streams: opened one by one over `ramp_s`, measured in a window of all.

    `cpu_of` names processes whose CPU is read at both ends of the window. `exact`: the answers must
    be the backend's bytes; else its words are enough.
    """

    metric: str
    streams: int
    events_per_s: int
    ramp_s: float
    settle_s: float
    window_s: float
    rounds: int
    port: int = 0
    cpu_of: dict[str, int] = {}
    exact: bool = True

    @property
    def title(self) -> str:
        many = f"{self.streams:,} stream{'s' if self.streams > 1 else ''}"
        return f"{many} x {self.events_per_s}/s"

    @property
    def events(self) -> int:
        """Events of one stream, so that the first outlasts the window."""
        open_s = self.ramp_s + self.settle_s + self.window_s + 0.4
        return int(open_s * self.events_per_s)

    @property
    def interval_ms(self) -> int:
        return 1000 // self.events_per_s

    @property
    def wanted_per_s(self) -> float:
        return float(self.streams * self.events_per_s)


class RequestLoad(msgspec.Struct, tag=True, frozen=True):
    """Plain requests over kept-alive connections, at a fixed rate.

    0 requests a second: a closed loop, in which each answer is followed by the next request.
    `prompt_bytes` of 0: a short question.
    """

    metric: str
    requests_per_s: int
    window_s: float
    rounds: int
    prompt_bytes: int = 0
    connections: int = 16
    settle_s: float = 0.5
    port: int = 0
    cpu_of: dict[str, int] = {}
    exact: bool = True

    @property
    def title(self) -> str:
        if not self.requests_per_s:
            return f"small JSON request, closed loop of {self.connections}"
        if not self.prompt_bytes:
            return "small JSON request"
        return f"request with a prompt of {self.prompt_bytes // 1_000:,} KB"

    @property
    def wanted_per_s(self) -> float:
        return float(self.requests_per_s)


class FirstByteLoad(msgspec.Struct, tag=True, frozen=True):
    """Short streams one after another, to each port in turn."""

    ports: dict[str, int]
    turns: int


Load = StreamLoad | RequestLoad | FirstByteLoad


class LoadReport(msgspec.Struct, frozen=True):
    """A window of streams or requests. `count` is events or answers that arrived in it."""

    count: int
    window_s: float
    cpu_ns: dict[str, int]
    busy_share: float
    broken: dict[str, int]
    gap_ms: dict[str, float] = {}
    late_ms: dict[str, float] = {}

    def us_each(self, name: str) -> float:
        """Microseconds of the process's CPU for each event or answer."""
        return self.cpu_ns[name] / 1000 / max(1, self.count)

    def core_share(self, name: str) -> float:
        return self.cpu_ns[name] / 1e9 / self.window_s

    @property
    def per_s(self) -> float:
        return self.count / self.window_s

    def others_share(self, cores: int) -> float:
        """What was used by processes that have no part in this, as a share of one core."""
        own = sum(self.cpu_ns.values()) / 1e9 / self.window_s
        return max(0.0, self.busy_share * cores - own)


class FirstByteReport(msgspec.Struct, frozen=True):
    """Milliseconds to the first byte, in order, by port's name."""

    ms: dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of one run. A round measures every peer once, each time in another order."""

    rounds: int
    streams: tuple[StreamLoad, ...]
    requests: tuple[RequestLoad, ...]
    wide: StreamLoad
    turns: int = 300
    repeats_s: float = 30.0  # to take disturbed measurements again

    @property
    def loads(self) -> tuple[StreamLoad | RequestLoad, ...]:
        return (*self.streams, *self.requests, self.wide)

    def of_rounds(self, rounds: int) -> "Plan":
        """The same with other rounds; what takes long is not done more than RARE times."""
        rare = min(rounds, RARE)
        return replace(
            self,
            rounds=rounds,
            streams=tuple(
                changed(each, rounds=rounds if each.streams > 1 else rare) for each in self.streams
            ),
            requests=tuple(
                changed(each, rounds=rare if each.prompt_bytes else rounds)
                for each in self.requests
            ),
            wide=changed(self.wide, rounds=rare),
        )


DEFAULT: Final = Plan(
    rounds=2,
    streams=(
        StreamLoad("stream", 300, 50, ramp_s=1.0, settle_s=0.5, window_s=3.0, rounds=2),
        StreamLoad("single", 1, 50, ramp_s=0.0, settle_s=0.3, window_s=2.0, rounds=1),
    ),
    requests=(
        RequestLoad("request", 2_000, window_s=2.5, rounds=2),
        RequestLoad("closed", 0, window_s=1.5, rounds=2),
        RequestLoad("prompt_2k", 1_000, window_s=1.5, rounds=1, prompt_bytes=2_000),
        RequestLoad("prompt_220k", 100, window_s=1.5, rounds=1, prompt_bytes=220_000),
        RequestLoad("prompt_1m", 20, window_s=2.0, rounds=1, prompt_bytes=1_000_000),
    ),
    wide=StreamLoad("wide", 2_000, 20, ramp_s=3.0, settle_s=1.0, window_s=4.0, rounds=2),
)
QUICK: Final = replace(
    DEFAULT,
    rounds=1,
    streams=tuple(changed(each, rounds=1, window_s=1.5) for each in DEFAULT.streams),
    requests=tuple(changed(each, rounds=1, window_s=1.0) for each in DEFAULT.requests),
    wide=changed(DEFAULT.wide, rounds=1, ramp_s=2.0, window_s=1.5),
    turns=200,
    repeats_s=8.0,
)
