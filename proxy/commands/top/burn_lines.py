"""Service levels: how far each is kept, what is left of its budget, and how fast that burns."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.proxy.commands.plain_text import plain
from penstock.proxy.commands.top.figures import NONE, percent, seconds
from penstock.proxy.commands.top.line import Line, Span, Tone, ended, joined, width_of

_RANKS: Final = {"critical": 0, "warning": 1}
_TONES: Final[dict[str, Tone]] = {"critical": "bad", "warning": "warn"}
# A slower burn is none.
BURN_MIN: Final = 0.05


def burn_lines(slos: Sequence[Mapping[str, Any]], width: int, lines_max: int) -> list[Line]:
    """A line for each, the worst first. The last line counts those that have none."""
    if not slos:
        return [(Span("SLO  None is configured (slo:).", "quiet"),)]
    worst = sorted(slos, key=lambda each: (_RANKS.get(each["state"], 2), each["budget_left"]))
    if rest := worst[lines_max:]:
        bad = sum(each["state"] != "ok" for each in rest)
        how = f"{bad:,} not ok" if bad else "ok"
        more = Span(f"  +{len(rest):,}, {how}", "warn" if bad else "quiet")
        lines = [_line(each, width) for each in worst[: lines_max - 1]]
        last = _line(worst[lines_max - 1], width - len(more.text))
        return [*lines, ended(last, more, width)]
    return [_line(each, width) for each in worst]


def _line(slo: Mapping[str, Any], width: int) -> Line:
    whose = " ".join(plain(each) for each in (slo["pool"], slo["class"]) if each) or "all"
    state = Span(slo["state"], _TONES.get(slo["state"], "good"))
    begin = (Span(f"SLO  {whose} {_name(slo)}: "), state, Span(", "))
    measured = slo["measured_s"]
    figures = [
        "" if measured is None else seconds(measured),
        f"{percent(max(-9.99, slo['budget_left']))} left",
        *_burns(slo),
    ]
    if because := slo.get("because"):
        figures = [plain(because), figures[1]]
    elif not slo["requests"]:
        figures = ["no request yet"]
    return (*begin, *joined(map(Span, figures), ", ", width - width_of(begin)))


def _name(slo: Mapping[str, Any]) -> str:
    """`ttft_p95` with its target: ttft p95 <= 0.50s."""
    name = plain(slo["slo"]).replace("_", " ")
    targets = [*slo["targets_s"].values()]
    return f"{name} <= {seconds(targets[0])}" if len(targets) == 1 else name


def _burns(slo: Mapping[str, Any]) -> list[str]:
    """In the shortest window and in the longest: 1 uses up the budget just in time."""
    windows = [*slo["windows"].items()]
    told = windows if len(windows) < 2 else [windows[0], windows[-1]]
    if all((each["burn_rate"] or 0.0) < BURN_MIN for _, each in told):
        return ["no burn"] if told else []
    rates = [
        f"{NONE if each['burn_rate'] is None else format(each['burn_rate'], '.1f')}x {name}"
        for name, each in told
    ]
    return [f"burn {rates[0]}", *rates[1:]]
