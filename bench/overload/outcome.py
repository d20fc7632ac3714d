"""What a run is judged by. Every figure is of the calls that came within a part of the run."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Final

from penstock.bench.overload.calls import Call, Log
from penstock.bench.overload.mixes import Mix, quartiles
from penstock.bench.routing.outcome import quantile

# As penstock has them where nothing else is configured.
CLASSES: Final = ("interactive", "standard", "batch")
# A prediction of less is as good as this.
SHORT_S = 0.05


def figures(
    mix: Mix, log: Log, from_s: float, to_s: float, preemptions: int = 0
) -> dict[str, float]:
    """Rates are per second, times in seconds, the rest are shares."""
    seconds = to_s - from_s
    calls = _within(log, from_s, to_s)
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
        "tokens_per_s": _tokens_per_s(log, from_s, to_s),
        "high_ttft_p50_s": quantile(high, 0.5),
        "high_ttft_p99_s": quantile(high, 0.99),
        "low_ttft_p50_s": quantile(low, 0.5),
        "low_ttft_p99_s": quantile(low, 0.99),
        "refused": _refused(calls),
        "capped": sum(c.answer_tokens < c.output_tokens for c in calls) / max(1, len(calls)),
        "late": sum(call.late for call in calls) / max(1, sent),
        "least_quarter": min(shares),
        "longest_quarter": shares[3],
        "preemptions": float(preemptions),
        "prediction_error": quantile(_errors(log), 0.5),
    }


def of_ordinary(
    log: Log, from_s: float, to_s: float, preemptions: int, idle: float, named: Sequence[str]
) -> dict[str, float]:
    """What patient clients see. Of each class and tenant of these names also apart."""
    calls = _within(log, from_s, to_s)
    answered = [call for call in calls if call.e2e_s >= 0.0]
    found = {
        "ttft_mean_s": _mean([call.ttft_s for call in answered]),
        "ttft_p99_s": quantile([call.ttft_s for call in answered], 0.99),
        "e2e_mean_s": _mean([call.e2e_s for call in answered]),
        "tokens_per_s": _tokens_per_s(log, from_s, to_s),
        "refused": _refused(calls),
        "unanswered": 1.0 - len(answered) / max(1, len(calls)),
        "preemptions": float(preemptions),
        "idle": idle,
    }
    groups = {
        name: [call for call in answered if call.rank == rank] for rank, name in enumerate(CLASSES)
    }
    groups |= {name: [call for call in answered if call.tenant == name] for name in named}
    for name, group in groups.items():
        if 0 < len(group) < len(answered):
            found[f"{name}: ttft_mean_s"] = _mean([call.ttft_s for call in group])
            found[f"{name}: ttft_p99_s"] = quantile([call.ttft_s for call in group], 0.99)
    return found


def of_pressed(
    log: Log, from_s: float, to_s: float, preemptions: int, is_victim: Callable[[Call], bool]
) -> dict[str, float]:
    """What is left above the capacity. `is_victim`: for whom the others are too many."""
    calls = _within(log, from_s, to_s)
    high = [call for call in calls if call.rank == 0]
    found = {
        "good_per_s": sum(call.good for call in calls) / (to_s - from_s),
        "goodput": _mean([call.good for call in calls]),
        "answered": _mean([call.e2e_s >= 0.0 for call in calls]),
        "tokens_per_s": _tokens_per_s(log, from_s, to_s),
        "refused": _refused(calls),
        "late": sum(c.late for c in calls) / max(1, sum(c.sent for c in calls)),
        "preemptions": float(preemptions),
    }
    for name, group in (("high", high), ("victim", list(filter(is_victim, calls)))):
        if group:
            found[f"{name}_goodput"] = _mean([call.good for call in group])
            found[f"{name}_refused"] = _refused(group)
        if ttfts_s := [call.ttft_s for call in group if call.ttft_s >= 0.0]:
            found[f"{name}_p99_s"] = quantile(ttfts_s, 0.99)
    return found


def _within(log: Log, from_s: float, to_s: float) -> list[Call]:
    return [call for call in log.calls if from_s <= call.at_s < to_s]


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _refused(calls: Sequence[Call]) -> float:
    return sum(call.refused for call in calls) / max(1, sum(call.attempts for call in calls))


def _tokens_per_s(log: Log, from_s: float, to_s: float) -> float:
    return sum(n for at_s, n in log.tokens if from_s <= at_s < to_s) / (to_s - from_s)


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
