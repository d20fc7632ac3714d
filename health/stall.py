"""How long a backend with requests has shown no progress, and whether probes find that it hangs.

Pure: time is an argument.
"""

from typing import Final

from penstock.balancing.backend import Backend, State

# With requests in flight and no token for this time, plus the time that the oldest prompt takes at
# the measured rate, a deep probe comes at once. Engines prefill first come, first served, so the
# prompts behind it add no time. The measured rate is a lower bound, so this is patient enough.
STALL_S: Final = 2.0
PREFILL_S_MAX: Final = 60.0
# A backend without a possible deep probe (transcription) shows only by its requests whether it
# works. The longest file takes less than this.
UNPROBED_STALL_S: Final = 60.0


def hangs(backend: Backend) -> bool:
    """Whether probes find that it takes requests and answers nothing.

    A deep probe shows that. One that asks only for its health must have been late several times.
    """
    state, reason = backend.state, backend.reason
    ejected = state is State.EJECTED
    return (ejected and reason == "timeout") or (
        reason == "hung" and (ejected or state is State.SUSPECT)
    )


class Stall:
    """The last progress of one backend's requests."""

    __slots__ = ("_at_s", "_backend", "_seen")

    def __init__(self, backend: Backend, now_s: float) -> None:
        self._backend = backend
        self._seen = backend.progress
        self._at_s = now_s

    def look(self, now_s: float) -> None:
        """Note progress since the last look. Without requests there is nothing to wait for."""
        backend = self._backend
        if backend.progress != self._seen or not backend.own.requests:
            self._seen = backend.progress
            self._at_s = now_s

    def begin(self, now_s: float) -> None:
        """Begin anew: no progress could be noticed until now."""
        self._at_s = now_s

    def lasts_s(self, now_s: float) -> float:
        """How long there was no progress, beyond the time that the present prompt may take."""
        return now_s - self._at_s - min(PREFILL_S_MAX, self._backend.head_prefill_s)

    def left_s(self, now_s: float) -> float:
        """The time left for the prompt that is being prefilled: a probe has to wait for it."""
        return max(0.0, -self.lasts_s(now_s))
