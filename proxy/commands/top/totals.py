"""All pools together: tokens, requests, failures, costs, and where first tokens wait."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.proxy.commands.top.figures import count, price, seconds
from penstock.proxy.commands.top.line import Line, Span, joined

Told = Mapping[str, Any]
GAP: Final = "  "


def totals_line(snapshot: Told, width: int) -> Line:
    """One line: what passes, what runs and waits, what fails and what it costs. What has no room
    is left out, from the end."""
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


def first_token_line(rates: Mapping[str, Told], width: int) -> Line:
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
    paid = [each for each in pools if each["cost_per_1k_tokens"]]
    if per_hour is None:
        return []
    if not paid:
        return [f"cost {price(per_hour)}/h"]
    tokens = [
        (each["prompt_tokens_per_s"] or 0.0) + (each["answer_tokens_per_s"] or 0.0) for each in paid
    ]
    weights = tokens if sum(tokens) else [1.0] * len(paid)
    pairs = zip(paid, weights, strict=True)
    mean = sum(each["cost_per_1k_tokens"] * weight for each, weight in pairs) / sum(weights)
    return [f"cost {price(per_hour)}/h", f"{price(mean)}/1k tokens"]
