"""The tables of a run over the peers, in Markdown."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final

from penstock.bench.peers.cell import Cell
from penstock.bench.peers.field import Peer
from penstock.bench.report import head, row
from penstock.bench.routing.outcome import half_width, quantile

_SHOWN: Final = (
    ("ttft_mean_s", "TTFT mean ms", 1e3, 0),
    ("ttft_p50_s", "p50", 1e3, 0),
    ("ttft_p99_s", "p99", 1e3, 0),
    ("itl_p99_s", "ITL p99 ms", 1e3, 0),
    ("e2e_mean_s", "E2E mean ms", 1e3, 0),
    ("goodput", "goodput", 1.0, 3),
    ("hit_rate", "hits", 1.0, 3),
)
_HEADS: Final = (
    "peer",
    "TTFT / first row's",
    "short: mean ms",
    "p99",
    *(title for _, title, _, _ in _SHOWN),
    "shares %",
    "CPU ms / request",
    "core %",
    "MiB",
    "requests",
    "not whole",
)


def peers_table(
    cells: Mapping[Peer, Sequence[Cell]], missing: Mapping[Peer, str], memory: Mapping[Peer, float]
) -> str:
    """A row a peer, means over its rounds; who could not run says why.

    With three rounds and more their 95 % intervals; with any, what the same requests took through
    the first peer. Short prompts are those below cell.SHORT_TOKENS.
    """
    lines = [head(*_HEADS)]
    first = next(iter(cells.values()), ())
    lines += [row(*_cells(peer, runs, first, memory)) for peer, runs in cells.items() if runs]
    lines += [row(peer.label, f"did not run: {reason}") for peer, reason in missing.items()]
    notes = {
        f"Saturated: {peer.label}, {text}."
        for peer, runs in cells.items()
        for text in dict.fromkeys(text for cell in runs for text in cell.saturated)
    }
    return "\n".join([*lines, *([""] if notes else []), *sorted(notes)])


def _cells(
    peer: Peer, runs: Sequence[Cell], first: Sequence[Cell], memory: Mapping[Peer, float]
) -> list[str]:
    shares = [fmean(of(cell.shares) for cell in runs) for of in (min, max)]
    return [
        peer.label,
        _ratios(runs, first),
        *_short(runs),
        *(_mean(runs, key, unit, digits) for key, _, unit, digits in _SHOWN),
        f"{100 * shares[0]:.0f} to {100 * shares[1]:.0f}",
        f"{fmean(cell.cpu_ms_per_request for cell in runs):.2f}",
        f"{100 * fmean(cell.core_shares['peer'] for cell in runs):.0f}",
        f"{memory[peer]:.0f}" if peer in memory else "-",
        str(sum(cell.requests for cell in runs)),
        _faults(runs),
    ]


def both_table(
    cells: Mapping[Peer, Sequence[Cell]], virtual: Callable[[str], dict[str, float]]
) -> str:
    """Mean TTFT of our policies over HTTP, in the first round, and of the same in virtual time."""
    heads = ("policy", "TTFT mean ms over HTTP", "in virtual time", "rank over HTTP", "rank there")
    first = {peer.rule: runs[0] for peer, runs in cells.items() if peer.name == "penstock" and runs}
    http = {rule: cell.figures["ttft_mean_s"] for rule, cell in first.items() if cell.figures}
    there = {rule: virtual(rule)["ttft_mean_s"] for rule in http}
    ranks = [sorted(each, key=each.__getitem__) for each in (http, there)]
    lines = [head(*heads)]
    for rule in http:
        places = [str(rank.index(rule) + 1) for rank in ranks]
        lines.append(row(rule, f"{1e3 * http[rule]:.0f}", f"{1e3 * there[rule]:.0f}", *places))
    return "\n".join(lines)


def _ratios(runs: Sequence[Cell], first: Sequence[Cell]) -> str:
    """Mean TTFT over that of the first peer, round by round: least to most."""
    pairs = zip(runs, first, strict=False)  # a peer that died has fewer rounds
    ratios = [
        mine.figures["ttft_mean_s"] / base.figures["ttft_mean_s"]
        for mine, base in pairs
        if mine.figures and base.figures
    ]
    if not ratios:
        return "-"
    least, most = min(ratios), max(ratios)
    return f"{least:.2f}" if len(ratios) == 1 else f"{least:.2f} to {most:.2f}"


def _short(runs: Sequence[Cell]) -> tuple[str, str]:
    """Mean and p99 TTFT of short prompts, all rounds pooled."""
    pooled = [ttft_s for cell in runs for ttft_s in cell.short_ttft_s]
    if not pooled:
        return "-", "-"
    return f"{1e3 * fmean(pooled):.0f}", f"{1e3 * quantile(pooled, 0.99):.0f}"


def _mean(runs: Sequence[Cell], key: str, unit: float, digits: int) -> str:
    values = [cell.figures[key] * unit for cell in runs if key in cell.figures]
    if not values:
        return "-"
    interval = f" ± {half_width(values):.{digits}f}" if len(values) > 2 else ""
    return f"{fmean(values):.{digits}f}{interval}"


def _faults(runs: Sequence[Cell]) -> str:
    counts: dict[str, int] = {}
    for cell in runs:
        for fault, count in cell.faults.items():
            counts[fault] = counts.get(fault, 0) + count
    return ", ".join(f"{count} x {fault}" for fault, count in counts.items()) or "0"
