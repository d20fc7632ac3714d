"""The lines above and below the table: why it is slow, service levels, totals, what waits."""

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.proxy.commands.plain_text import fit, plain
from penstock.proxy.commands.status import told_of
from penstock.proxy.commands.time_spent import reason
from penstock.proxy.commands.top.lines import (
    EMPTY,
    Line,
    Span,
    Told,
    Tone,
    clock,
    count,
    joined,
    many,
    percent,
    price,
    seconds,
    times,
    width_of,
    within,
    wrapped,
)

GAP: Final = "  "
# A sentence and a remedy have so many lines each at most.
SENTENCE_LINES_MAX: Final = 3
POOLS_NAMED_MAX: Final = 3
MORE: Final = Span(" ..", "quiet")
NAME_WIDE: Final = 14
# A slower burn is none.
BURN_MIN: Final = 0.05
_SLO_RANKS: Final = ("critical", "warning")
_SLO_TONES: Final[dict[str, Tone]] = {"critical": "bad", "warning": "warn"}


def verdict_lines(snapshot: Told, width: int, lines_max: int) -> list[Line]:
    """What is wrong first, and all in `lines_max` lines: the first line of each pool, and as many
    of the others as there is room for. What does not fit is counted."""
    verdicts = snapshot["verdicts"]
    wrong = [each for each in verdicts if each["kind"] != "fine"]
    blocks = [_wrong(each, width, lines_max) for each in wrong]
    blocks += [[(Span("! ", "warn"), Span(plain(each), "warn"))] for each in _of_proxy(snapshot)]
    if len(wrong) < len(verdicts) or not verdicts:
        fine = [each for each in verdicts if each["kind"] == "fine"]
        blocks.append([_fine(fine, are_all=not wrong)])
    if len(blocks) > lines_max:
        left = len(blocks) - lines_max + 1
        more = Span(f"{GAP}and {left:,} more: penstock status names all.", "quiet")
        return [*(block[0] for block in blocks[: lines_max - 1]), (more,)]
    spare = lines_max - len(blocks)
    lines: list[Line] = []
    for block in blocks:
        shown = block[: 1 + spare]
        spare -= len(shown) - 1
        lines += shown if len(shown) == len(block) else [*shown[:-1], (*shown[-1], MORE)]
    return lines or [EMPTY]


def _wrong(told: Told, width: int, lines_max: int) -> list[Line]:
    since = f", since {clock(told['since'])}" if told["since"] else ""
    sentence = plain(f"! {told['pool']}{since}: {told['sentence']}")
    most, room = min(lines_max, SENTENCE_LINES_MAX), width - len(MORE.text)
    lines = wrapped(sentence, "bad", room, most, GAP)
    for step in told["to_do"]:
        lines += _indented(f"{GAP}To do: {step}", "", width, SENTENCE_LINES_MAX)
    return lines


def _indented(text: str, tone: Tone, width: int, lines_max: int) -> list[Line]:
    lines = wrapped(plain(text), tone, width - len(GAP), lines_max)
    return [(Span(GAP), *line) for line in lines]


def _of_proxy(snapshot: Told) -> list[str]:
    """What is wrong with the proxy itself. What waits stands elsewhere."""
    told = snapshot["proxy"]
    lines = told_of({**told, "waiting": {}})
    if problems := told["reload_failed"]:
        lines.append(
            f"The last reload failed: {many(len(problems), 'problem')}, which penstock status"
            " names. The previous configuration is still in use."
        )
    return lines


def _fine(fine: Sequence[Told], *, are_all: bool) -> Line:
    if not fine:
        return (Span("No verdict yet: the first looks take a second or two.", "quiet"),)
    named = ", ".join(plain(each["pool"]) for each in fine)
    named = named if len(fine) <= POOLS_NAMED_MAX else many(len(fine), "pool")
    if not are_all:
        return (Span(f"{GAP}{named}: nothing is wrong there.", "quiet"),)
    since = clock(max(each["since"] for each in fine))
    return (Span(f"{named}: nothing is wrong.", "good"), Span(f"  Since {since}.", "quiet"))


def slo_lines(slos: Sequence[Told], width: int, lines_max: int) -> list[Line]:
    """A line for each, the worst first. The last line counts those that have none."""
    if not slos:
        return [(Span("SLO  None is configured (slo:).", "quiet"),)]
    ranks = {state: rank for rank, state in enumerate(_SLO_RANKS)}
    worst = sorted(slos, key=lambda each: (ranks.get(each["state"], 2), each["budget_left"]))
    lines = [_slo(each, width) for each in worst[:lines_max]]
    if rest := worst[lines_max:]:
        bad = sum(each["state"] != "ok" for each in rest)
        told = f"{GAP}+{len(rest):,}, {f'{bad:,} not ok' if bad else 'ok'}"
        room = max(0, width - len(told))
        last = within(_slo(worst[lines_max - 1], room), room)
        lines[-1] = (*last, Span(told, "warn" if bad else "quiet"))
    return lines


def _slo(slo: Told, width: int) -> Line:
    """How far it is kept, what is left of its budget, and how fast that burns."""
    whose = " ".join(plain(each) for each in (slo["pool"], slo["class"]) if each) or "all"
    name, targets = plain(slo["slo"]).replace("_", " "), [*slo["targets_s"].values()]
    name += f" <= {seconds(targets[0])}" if len(targets) == 1 else ""
    state = Span(slo["state"], _SLO_TONES.get(slo["state"], "good"))
    begin = (Span(f"SLO  {whose} {name}: "), state, Span(", "))
    left = f"{percent(max(-9.99, slo['budget_left']))} left"
    if because := slo.get("because"):
        figures = [plain(because), left]
    elif slo["requests"]:
        measured = "" if slo["measured_s"] is None else seconds(slo["measured_s"])
        figures = [measured, left, *_burns(slo)]
    else:
        figures = ["no request yet"]
    return (*begin, *joined(map(Span, figures), ", ", width - width_of(begin)))


def _burns(slo: Told) -> list[str]:
    """In the shortest window and in the longest: 1 uses up the budget just in time."""
    windows = [(each["burn_rate"], name) for name, each in slo["windows"].items()]
    windows = windows if len(windows) < 2 else [windows[0], windows[-1]]
    if all((rate or 0.0) < BURN_MIN for rate, _ in windows):
        return ["no burn"] if windows else []
    rates = [f"{times(rate)} {name}" for rate, name in windows]
    return [f"burn {rates[0]}", *rates[1:]]


def totals_line(snapshot: Told, width: int) -> Line:
    """All pools together: what passes, what runs and waits, what fails and what it costs. What has
    no room is left out, from the end."""
    pools = [*snapshot["rates"].values()]
    engines = [each["engine"] for each in snapshot["backends"] if each["engine"]]
    waiting = sum(snapshot["proxy"]["waiting"].values())
    refused, failed = _sum(pools, "refused_per_s"), _sum(pools, "failed_per_s")
    parts = [
        Span(f"{count(_sum(pools, 'answer_tokens_per_s'))} tokens/s", "strong"),
        Span(f"{count(_sum(pools, 'prompt_tokens_per_s'))} prompt"),
        Span(f"{count(_sum(pools, 'requests_per_s'))} req/s"),
        Span(f"run {count(_sum(engines, 'running'))}"),
        Span(f"wait {count(_sum(engines, 'waiting'))}"),
        Span(f"failed {count(failed)}/s", "bad" if failed else ""),
        *map(Span, _costs(pools)),
        Span(f"refused {count(refused)}/s", "warn" if refused else ""),
        Span(f"in line {count(waiting)}", "warn" if waiting else ""),
    ]
    return joined(parts, GAP, width)


def first_token_line(rates: Told, width: int) -> Line:
    """Of the pool with the slowest first tokens: the percentiles, and the mean of each part."""
    measured = [(name, each) for name, each in rates.items() if each["streams"]]
    if not measured:
        return (Span("TTFT  No stream has ended in the last minute.", "quiet"),)
    name, worst = max(measured, key=lambda each: each[1]["ttft_p95_s"] or 0.0)
    parts = [
        Span(f"TTFT {name}".rstrip() if len(measured) > 1 else "TTFT"),
        Span(f"50% {seconds(worst['ttft_p50_s'])}"),
        Span(f"95% {seconds(worst['ttft_p95_s'])}", "strong"),
        Span(f"mean {seconds(worst['ttft_mean_s'])}:"),
        *(Span(f"{part} {seconds(mean)}", "quiet") for part, mean in worst["parts"].items()),
    ]
    return joined(parts, GAP, width)


def _sum(entries: Iterable[Told], name: str) -> float | None:
    found = [each[name] for each in entries if each[name] is not None]
    return sum(found) if found else None


def _costs(pools: Sequence[Told]) -> list[str]:
    """Of an hour, and of a thousand tokens. Nothing if no price is configured."""
    per_hour = _sum(pools, "cost_per_hour")
    if per_hour is None:
        return []
    paid = [each for each in pools if each["cost_per_1k_tokens"]]
    if not paid:
        return [f"cost {price(per_hour)}/h"]
    rates = [(each["prompt_tokens_per_s"], each["answer_tokens_per_s"]) for each in paid]
    weights = [(prompt or 0.0) + (answer or 0.0) or 1e-9 for prompt, answer in rates]
    pairs = zip(paid, weights, strict=True)
    mean = sum(each["cost_per_1k_tokens"] * weight for each, weight in pairs) / sum(weights)
    return [f"cost {price(per_hour)}/h", f"{price(mean)}/1k tokens"]


def waiting_line(queue: Told, width: int) -> Line:
    """All that waits in penstock for room at a backend, in one line."""
    classes = [each for each in queue["classes"] if each["requests"]]
    if not classes:
        return (Span("WAITING", "head"), Span(f"{GAP}{_nothing(queue)}", "quiet"))
    told = [
        Span(f"{plain(each['name'])} {each['requests']:,} ({count(each['tokens'])} tokens)", "warn")
        for each in classes
    ]
    told += [Span(f"{_tenant(each)} {each['requests']:,}") for each in queue["tenants"]]
    return joined([Span("WAITING", "head"), *told], GAP, width)


def waiting_lines(queue: Told, width: int, lines_max: int) -> list[Line]:
    """The classes with their pressure and what the next one waits for, then the tenants."""
    lines: list[Line] = [(Span("WAITING IN PENSTOCK", "head"),)]
    for each in queue["classes"]:
        if queue["enabled"] or each["requests"]:
            pressures = [pool["pressure"].get(each["name"], 0.0) for pool in queue["pools"]]
            lines += _class(each, max(pressures, default=0.0), width)
    if queue["tenants"]:
        lines.append((Span("by tenant", "quiet"),))
        lines += [
            (Span(fit(_tenant(each), NAME_WIDE)), Span(f" {each['requests']:>7,}"))
            for each in queue["tenants"]
        ]
    elif not any(each["requests"] for each in queue["classes"]):
        lines.append((Span(_nothing(queue), "quiet"),))
    return lines[:lines_max]


def _class(told: Told, pressure: float, width: int) -> list[Line]:
    requests = told["requests"]
    much = f"{many(requests, 'request')}, {count(told['tokens'])} tokens" if requests else "0"
    lines: list[Line] = [
        (
            Span(fit(plain(told["name"]), NAME_WIDE)),
            Span(f" {much}", "warn" if requests else ""),
            Span(f", pressure {percent(pressure)}", "bad" if pressure >= 1.0 else "quiet"),
        )
    ]
    if head := told["next"]:
        next_one = f"next: {seconds(head['waited_s'])}. {reason(head)}"
        lines += _indented(next_one, "quiet", width, 2)
    return lines


def _tenant(told: Told) -> str:
    return plain(told["name"]) if told["name"] else "without a key"


def _nothing(queue: Told) -> str:
    if queue["enabled"]:
        return "Nothing waits."
    return "Nothing waits here: admission is off (admission.enabled)."
