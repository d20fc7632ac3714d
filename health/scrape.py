"""Reads vLLM's `/metrics`: the few values that the choice of backends needs.

The exposition has 50 to 70 kB, for which a general parser takes milliseconds. A dozen searches for
the names take a tenth of one, because the series of a family stand together, as the format demands:
each search ends at the next family. A server with data parallelism has a series for each `engine`;
they are added up.
"""

import asyncio
import re
from typing import Final

from penstock.balancing.engine_report import EngineReport

METRICS: Final = b"/metrics"
METRICS_BYTES_MAX: Final = 2_097_152
# The most series of one name: an engine has one for each model, a server one for each engine.
SERIES_MAX: Final = 512
LABELS_BYTES_MAX: Final = 4_096  # the longest in vLLM 0.32 has 1,009
# What a count may be, all series of it together: JSON knows no larger whole numbers.
VALUE_MAX: Final = 2**53
VALUE_BYTES_MAX: Final = 64  # with its timestamp
# For a text larger than this the loop runs after each name.
LARGE_BYTES: Final = 131_072
_NEXT_FAMILY: Final = b"\n#"
_CAPACITY: Final = re.compile(rb'kv_cache_size_tokens="([0-9]{1,15})(?:\.0)?"')
_AWAKE: Final = b'sleep_state="awake"'
_CAPACITY_WAIT: Final = b'reason="capacity"'
_DEFERRED: Final = b'reason="deferred"'
_NAMES: Final = {
    "running": b"vllm:num_requests_running",
    "waiting": b"vllm:num_requests_waiting",
    "usage": b"vllm:kv_cache_usage_perc",
    "config": b"vllm:cache_config_info",
    "sleep": b"vllm:engine_sleep_state",
    "queries": b"vllm:prefix_cache_queries_total",
    "hits": b"vllm:prefix_cache_hits_total",
    "generated": b"vllm:generation_tokens_total",
    "by_reason": b"vllm:num_requests_waiting_by_reason",
    "preemptions": b"vllm:num_preemptions_total",
    "prompt": b"vllm:prompt_tokens_total",
    "steps": b"vllm:iteration_tokens_total_count",
    "step_tokens": b"vllm:iteration_tokens_total_sum",
}

Sample = tuple[bytes, float]  # labels and value
_UNCACHED: Final = b'enable_prefix_caching="False"'


class TooLarge(Exception):
    """An answer holds more than any server has to tell."""


async def read_report(text: bytes, now_s: float, known_requests: int) -> EngineReport | None:
    """The report in an exposition. None when it is not from vLLM. Raises TooLarge.

    `known_requests`: how many requests are known to be in flight there at `now_s`.
    """
    if text.find(_NAMES["running"]) < 0:
        return None
    text = b"\n" + text
    read = {}
    for key, name in _NAMES.items():
        read[key] = samples_of(text, name)
        if len(text) > LARGE_BYTES:
            await asyncio.sleep(0)
    capacity = [
        int(found[1]) for labels, _ in read["config"] if (found := _CAPACITY.search(labels))
    ]
    awake = [value for _, value in _with(read["sleep"], _AWAKE)]
    return EngineReport(
        at_s=now_s,
        running=_sum(read["running"]),
        waiting=_sum(read["waiting"]),
        kv_usage=max((value for _, value in read["usage"]), default=0.0),
        kv_told=bool(read["usage"]),
        kv_tokens=min(VALUE_MAX, sum(capacity)) if capacity else None,
        keeps_prefixes=not read["config"]
        or any(_UNCACHED not in each for each, _ in read["config"]),
        prefix_queries_tokens=_sum(read["queries"]),
        prefix_hits_tokens=_sum(read["hits"]),
        generated_tokens=_sum(read["generated"]),
        awake=not awake or any(awake),
        known_requests=known_requests,
        engines=max(1, len(capacity)),
        waiting_for_room=_sum(_with(read["by_reason"], _CAPACITY_WAIT)),
        deferred=_sum(_with(read["by_reason"], _DEFERRED)),
        preemptions=_sum(read["preemptions"]),
        prompt_tokens=_sum(read["prompt"]),
        steps=_sum(read["steps"]),
        step_tokens=_sum(read["step_tokens"]),
    )


def _with(samples: list[Sample], label: bytes) -> list[Sample]:
    """The samples that have this label."""
    return [sample for sample in samples if sample[0].find(label) >= 0]


def _sum(samples: list[Sample]) -> int:
    return min(VALUE_MAX, int(sum(value for _, value in samples)))


def samples_of(text: bytes, name: bytes) -> list[Sample]:
    """Every series of `name`. Values that are no numbers are left out."""
    samples: list[Sample] = []
    start = b"\n" + name + b"{"
    at = text.find(start)
    if at < 0:
        return samples
    stop = text.find(_NEXT_FAMILY, at)
    if stop < 0:
        stop = len(text)
    lines = 0
    while at >= 0:
        lines += 1
        if lines > SERIES_MAX:
            raise TooLarge
        at += len(start)
        end = text.find(b"\n", at)
        if end < 0:
            end = len(text)
        labels, _, value = text[at:end].rpartition(b"} ")
        try:
            number = float(value[:VALUE_BYTES_MAX].split(b" ")[0])
        except (ValueError, IndexError):
            number = float("nan")
        if 0.0 <= number < 1e18:  # no NaN, no infinity
            samples.append((labels[:LABELS_BYTES_MAX], number))
        at = text.find(start, end, stop)
    return samples
