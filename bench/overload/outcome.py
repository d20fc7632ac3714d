"""What a run is judged by. Every figure is of the calls that came within a part of the run."""

from bisect import bisect_right
from collections.abc import Sequence

from penstock.bench.overload.calls import Call, Log
from penstock.bench.overload.mixes import Mix, quartiles
from penstock.bench.routing.outcome import quantile

# A prediction of less is as good as this.
SHORT_S = 0.05


def figures(
    mix: Mix, log: Log, from_s: float, to_s: float, preemptions: int = 0
) -> dict[str, float]:
    """Rates are per second, times in seconds, the rest are shares."""
    seconds = to_s - from_s
    calls = [call for call in log.calls if from_s <= call.at_s < to_s]
    sent = sum(call.sent for call in calls)
    shares = share_of_quarters(mix, calls)
    high = [call.ttft_s for call in calls if call.rank == 0 and call.ttft_s >= 0.0]
    low = [call.ttft_s for call in calls if call.rank and call.ttft_s >= 0.0]
    good = sum(call.good for call in calls)
    urgent = [call.good for call in calls if call.rank == 0]
    return {
        "good_per_s": good / seconds,
        "goodput": good / max(1, len(calls)),
        "high_goodput": sum(urgent) / max(1, len(urgent)),
        "tokens_per_s": sum(n for at_s, n in log.tokens if from_s <= at_s < to_s) / seconds,
        "high_ttft_p50_s": quantile(high, 0.5),
        "high_ttft_p99_s": quantile(high, 0.99),
        "low_ttft_p50_s": quantile(low, 0.5),
        "low_ttft_p99_s": quantile(low, 0.99),
        "refused": sum(c.refused for c in calls) / max(1, sum(c.attempts for c in calls)),
        "capped": sum(c.answer_tokens < c.output_tokens for c in calls) / max(1, len(calls)),
        "late": sum(call.late for call in calls) / max(1, sent),
        "least_quarter": min(shares),
        "longest_quarter": shares[3],
        "preemptions": float(preemptions),
        "prediction_error": quantile(_errors(log), 0.5),
    }


def share_of_quarters(mix: Mix, calls: Sequence[Call]) -> list[float]:
    """Goodput of each quarter of the calls by their prompts' sizes, over that of all."""
    bounds = quartiles(mix)
    came, good = [0] * 4, [0] * 4
    for call in calls:
        quarter = min(3, bisect_right(bounds, call.prompt_tokens))
        came[quarter] += 1
        good[quarter] += call.good
    overall = sum(good) / max(1, sum(came))
    return [g / c / overall if c and overall else 1.0 for g, c in zip(good, came, strict=True)]


def _errors(log: Log) -> list[float]:
    return [abs(told - true) / max(SHORT_S, true) for told, true in log.waits]
