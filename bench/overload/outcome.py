"""What a run is judged by. Every figure is of the calls that came within a part of the run."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import fmean
from typing import Final

from penstock.bench.overload.calls import Call, Log
from penstock.bench.overload.mixes import Mix
from penstock.bench.routing.outcome import quantile

# As penstock has them where nothing else is configured.
CLASSES: Final = ("interactive", "standard", "batch")
# A prediction of less is as good as this.
SHORT_S: Final = 0.05
Belongs = Callable[[Call], bool]


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
    log: Log, from_s: float, to_s: float, preemptions: int, groups: Mapping[str, Belongs]
) -> dict[str, float]:
    """What is left above the capacity. Of those who belong to a group also apart."""
    calls = _within(log, from_s, to_s)
    found = {
        "good_per_s": sum(call.good for call in calls) / (to_s - from_s),
        "goodput": _mean([call.good for call in calls]),
        "answered": _mean([call.e2e_s >= 0.0 for call in calls]),
        "tokens_per_s": _tokens_per_s(log, from_s, to_s),
        "refused": _refused(calls),
        "capped": _mean([call.answer_tokens < call.output_tokens for call in calls]),
        "late": sum(call.late for call in calls) / max(1, sum(call.sent for call in calls)),
        "preemptions": float(preemptions),
        "prediction_error": quantile(_errors(log), 0.5),
    }
    for name, belongs in groups.items():
        group = list(filter(belongs, calls))
        if group:
            found[f"{name}_goodput"] = _mean([call.good for call in group])
            found[f"{name}_refused"] = _refused(group)
        if ttfts_s := [call.ttft_s for call in group if call.ttft_s >= 0.0]:
            found[f"{name}_ttft_p50_s"] = quantile(ttfts_s, 0.5)
            found[f"{name}_ttft_p99_s"] = quantile(ttfts_s, 0.99)
    return found


def longest_quarter(mix: Mix, log: Log, from_s: float, to_s: float) -> float:
    """The goodput of the quarter of the calls with the longest prompts, over that of all."""
    rng = Random(2)
    border = sorted([mix.draw(rng)[0] for _ in range(4_000)])[3_000]
    calls = _within(log, from_s, to_s)
    longest = [call.good for call in calls if call.prompt_tokens >= border]
    overall = _mean([call.good for call in calls])
    return _mean(longest) / overall if longest and overall else 1.0


def _within(log: Log, from_s: float, to_s: float) -> list[Call]:
    return [call for call in log.calls if from_s <= call.at_s < to_s]


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _refused(calls: Sequence[Call]) -> float:
    return sum(call.refused for call in calls) / max(1, sum(call.attempts for call in calls))


def _tokens_per_s(log: Log, from_s: float, to_s: float) -> float:
    return sum(n for at_s, n in log.tokens if from_s <= at_s < to_s) / (to_s - from_s)


def _errors(log: Log) -> list[float]:
    return [abs(told - true) / max(SHORT_S, true) for told, true in log.waits]
