"""The loads that the client can make, and what it reports: the two ends of a pipe.

They travel as JSON: a load as the client's argument, a report on its stdout.
"""

import msgspec


class StreamLoad(msgspec.Struct, tag=True, frozen=True):
    """Concurrent streams: opened one by one over `ramp_s`, measured in a window of all.

    `cpu_of` names processes whose CPU is read at both ends of the window.
    """

    port: int
    cpu_of: dict[str, int]
    streams: int
    events_per_s: int
    ramp_s: float
    settle_s: float
    window_s: float
    exact: bool = True
    """The answers must be the backend's bytes; else its words are enough."""

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
    """Plain requests over kept-alive connections, at a fixed rate. 0: in a closed loop."""

    port: int
    cpu_of: dict[str, int]
    connections: int
    requests_per_s: int
    settle_s: float
    window_s: float
    prompt_bytes: int = 0
    exact: bool = True

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
