"""What is scraped of an engine and of its GPUs, and how fast that becomes worthless.

Reports come seconds late, so our own counts decide. A report adds only what they lack: the
capacity, and requests that came by another way.
"""

from dataclasses import dataclass
from math import inf
from typing import Final

# A report counts fully for FRESH_S and then fades to nothing at STALE_S. An engine that stops
# reporting must not be judged by its last report.
FRESH_S: Final = 5.0
STALE_S: Final = 15.0
# How many waited in it says little after so long.
RECENT_S: Final = 10.0
# So many for each that runs are few.
FEW_PART: Final = 0.25


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One scrape of an engine. Data-parallel engines are added up.

    `known_requests`: those in flight then by our own count and by other replicas' reports.
    """

    at_s: float
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0  # 0..1, that of the fullest engine
    kv_tokens: int | None = None  # capacity of all engines; None: not reported
    keeps_prefixes: bool = True  # False: prefix caching is off
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    generated_tokens: int = 0
    awake: bool = True
    known_requests: int = 0
    engines: int = 1  # that share the address (data parallelism)
    # For people, but for `deferred`: nothing is decided by them.
    kv_told: bool = True  # False: it does not tell how full its cache is
    waiting_for_room: int = 0  # of `waiting`: for KV cache or a place in the batch
    deferred: int = 0  # of `waiting`: for something else, such as a cache that is being fetched
    preemptions: int = 0
    prompt_tokens: int = 0  # prefilled, with those found in the cache
    steps: int = 0
    step_tokens: int = 0  # of all these steps

    def hidden_requests(self, now_s: float) -> float:
        """Requests in the engine that were not known. The number fades with the report's age."""
        hidden = self.running + self.waiting - self.known_requests
        return hidden * self.freshness(now_s) if hidden > 0 else 0.0

    def waits_lately(self, now_s: float) -> float:
        """How many requests waited in the engine for their turn. inf: that was not seen lately.

        Beside many that run, a few wait for the next step only: they count as none.
        """
        if now_s - self.at_s >= RECENT_S:
            return inf
        waiting = float(max(0, self.waiting - self.deferred))
        return waiting if waiting > FEW_PART * self.running else 0.0

    def unheld_share(self, known_tokens: int, known_streams: int) -> float:
        """The share of `known_tokens`, those of all streams, that the engine does not hold.

        It holds a common beginning of prompts once, and nothing of an answer that has ended there
        while its client still reads. A waiting request may be a stream that was stopped: it will
        need its tokens again, so they count as held. 0.0 if nothing is known.
        """
        if not known_tokens or not self.kv_tokens:
            return 0.0
        held = self.kv_usage * self.kv_tokens / known_tokens + self.waiting / max(1, known_streams)
        return max(0.0, 1.0 - held)

    def works_since(self, before: "EngineReport") -> bool:
        """Whether the engine made tokens since then."""
        return self.generated_tokens > before.generated_tokens

    def moves_since(self, before: "EngineReport") -> bool:
        """Whether the engine did any work since then, also if only a piece of a long prefill."""
        return (
            self.works_since(before)
            or self.kv_usage > before.kv_usage
            or self.prefix_queries_tokens > before.prefix_queries_tokens
        )

    def restarted_since(self, before: "EngineReport") -> bool:
        """Whether its counters began anew."""
        return (
            self.generated_tokens < before.generated_tokens
            or self.prefix_queries_tokens < before.prefix_queries_tokens
        )

    def freshness(self, now_s: float) -> float:
        """1.0 while fresh, 0.0 when stale."""
        return min(1.0, max(0.0, (STALE_S - (now_s - self.at_s)) / (STALE_S - FRESH_S)))


# A GPU that computes less than this share of the time counts as idle.
IDLE_UTILIZATION: Final = 0.1


@dataclass(frozen=True, slots=True)
class GpuReport:
    """One scrape of an exporter. Several GPUs: their mean utilisation, the sum of their memory.

    It counts until `until_s`. None: not told.
    """

    until_s: float
    utilization: float | None = None  # 0..1
    used_bytes: int | None = None
    free_bytes: int | None = None

    def idles(self, now_s: float) -> bool:
        """Whether the GPUs do hardly anything, as far as is known."""
        if self.utilization is None or now_s >= self.until_s:
            return False
        return self.utilization < IDLE_UTILIZATION
