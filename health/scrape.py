"""What vLLM's `/metrics` tells a balancer, read by line prefix.

The exposition has 50 to 70 kB and a general parser takes milliseconds for it;
a dozen searches for the few names needed take a tenth of one. A server with
data parallelism has a series per `engine`: they are summed up.
"""

import re
from collections.abc import Iterator
from typing import Final

from balancing.engine_report import EngineReport

METRICS: Final = b"/metrics"
METRICS_BYTES_MAX: Final = 2_097_152
_CAPACITY: Final = re.compile(rb'kv_cache_size_tokens="([0-9]{1,15})(?:\.0)?"')
_AWAKE: Final = b'sleep_state="awake"'
_RUNNING: Final = b"vllm:num_requests_running"


def read_report(text: bytes, now_s: float, own_requests: int) -> EngineReport | None:
    """The report in an exposition, None when it is not a vLLM's.

    `own_requests` is what we have in flight there at `now_s`.
    """
    if _RUNNING not in text:
        return None
    text = b"\n" + text
    capacity = [
        int(found[1])
        for labels, _ in _samples(text, b"vllm:cache_config_info")
        if (found := _CAPACITY.search(labels))
    ]
    awake = [
        value for labels, value in _samples(text, b"vllm:engine_sleep_state") if _AWAKE in labels
    ]
    usage = [value for _, value in _samples(text, b"vllm:kv_cache_usage_perc")]
    return EngineReport(
        at_s=now_s,
        running=_sum(text, _RUNNING),
        waiting=_sum(text, b"vllm:num_requests_waiting"),
        kv_usage=max(usage, default=0.0),
        kv_tokens=sum(capacity) if capacity else None,
        prefix_queries_tokens=_sum(text, b"vllm:prefix_cache_queries_total"),
        prefix_hits_tokens=_sum(text, b"vllm:prefix_cache_hits_total"),
        generated_tokens=_sum(text, b"vllm:generation_tokens_total"),
        awake=not awake or any(awake),
        own_requests=own_requests,
    )


def _sum(text: bytes, name: bytes) -> int:
    return int(sum(value for _, value in _samples(text, name)))


def _samples(text: bytes, name: bytes) -> Iterator[tuple[bytes, float]]:
    """(labels, value) of every series of `name`; what is no number is left out."""
    start = b"\n" + name + b"{"
    at = text.find(start)
    while at >= 0:
        at += len(start)
        end = text.find(b"\n", at)
        labels, _, value = text[at : end if end >= 0 else None].rpartition(b"} ")
        try:
            number = float(value.split(b" ")[0])
        except (ValueError, IndexError):
            number = float("nan")
        if 0.0 <= number < 1e18:  # no NaN, no infinity
            yield labels, number
        at = text.find(start, end) if end >= 0 else -1
