"""Slow start: what a backend may take after it has come back.

It returns with a cold cache and an empty queue, so every policy would send it
all that comes at once; if it fails again, all of that is lost. So it may take
a share of the tokens that its pool takes, growing from 10 % of its fair share
to all of it over `warm_s`. The share is of what others take meanwhile and is
earned as they take it, so an idle backend cannot save up for a burst.
"""

from typing import Final

# Envoy's default `min_weight_percent`; HAProxy begins at 1 %, which is less
# than one request for a small pool.
FIRST_SHARE: Final = 0.1


class SlowStart:
    """The allowance of one backend since `began_s`, in prompt tokens."""

    __slots__ = ("_allowed_tokens", "_own_tokens", "_pool_tokens", "_warm_s", "began_s")

    def __init__(self, now_s: float, warm_s: float, *, own_tokens: int, pool_tokens: int) -> None:
        """`own_tokens` and `pool_tokens`: taken so far by the backend and by all of its pool."""
        self.began_s = now_s
        self._warm_s = warm_s
        self._own_tokens = own_tokens
        self._pool_tokens = pool_tokens
        self._allowed_tokens = 0.0

    def share(self, now_s: float) -> float:
        """What part of its fair share it may take now, 0.1 to 1.0."""
        if self._warm_s <= 0:
            return 1.0
        done = (now_s - self.began_s) / self._warm_s
        return min(1.0, max(0.0, FIRST_SHARE + (1.0 - FIRST_SHARE) * done))

    def over(self, now_s: float) -> bool:
        """Whether it may take all that comes."""
        return now_s - self.began_s >= self._warm_s

    def admits(
        self, tokens: int, now_s: float, *, own_tokens: int, pool_tokens: int, fair: float
    ) -> bool:
        """Whether a request of `tokens` is within the allowance.

        `own_tokens` and `pool_tokens` are the totals now, `fair` is the
        backend's part of the pool's weight.
        """
        earned = (pool_tokens - self._pool_tokens) * self.share(now_s) * fair
        self._allowed_tokens += earned
        self._pool_tokens = pool_tokens
        return own_tokens - self._own_tokens + tokens <= self._allowed_tokens
