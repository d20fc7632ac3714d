"""What an engine says of itself: a scrape of its metrics, and how long that is worth anything.

It comes seconds late, so it never decides by itself: own counts do. It tells
what they cannot: capacity, and requests that came by another way.
"""

from dataclasses import dataclass
from typing import Final

# A report counts in full for FRESH_S and then fades to nothing at STALE_S: an
# engine that stops reporting must not be judged by its last word.
FRESH_S: Final = 5.0
STALE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One scrape, data-parallel engines summed up. `own_requests`: ours in flight then."""

    at_s: float
    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0  # 0..1, the fullest engine's
    kv_tokens: int | None = None  # capacity of all engines; None: not told
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    generated_tokens: int = 0
    awake: bool = True
    own_requests: int = 0

    def hidden_requests(self, now_s: float) -> float:
        """Requests in the engine that are not ours, fading with the report's age."""
        hidden = max(0, self.running + self.waiting - self.own_requests)
        return hidden * self.freshness(now_s)

    def works_since(self, before: "EngineReport") -> bool:
        """Whether the engine has made tokens since; its cache may fill while it makes none."""
        return self.generated_tokens > before.generated_tokens

    def moves_since(self, before: "EngineReport") -> bool:
        """Whether the engine has worked since, if only on a prompt: its cache fills by pieces."""
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
        """1.0 while fresh, 0.0 once stale."""
        return min(1.0, max(0.0, (STALE_S - (now_s - self.at_s)) / (STALE_S - FRESH_S)))
