"""What stands before vLLM's scheduler: one process that reads HTTP, templates and tokenizes.

It takes its time for each request, one after the other, whatever the engine does meanwhile.
"""


class ApiServer:
    """A queue for one, in engine seconds; `api_s` of 0 lets everything through at once."""

    def __init__(self, api_s: float) -> None:
        self._api_s = api_s
        self._free_s = 0.0

    def ready_s(self, now_s: float) -> float:
        """When a request that comes now reaches the scheduler."""
        if not self._api_s:
            return now_s
        self._free_s = max(self._free_s, now_s) + self._api_s
        return self._free_s
