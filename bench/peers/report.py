"""The tables of a run over the peers, in Markdown."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final

from bench.peers.cell import Cell
from bench.peers.field import Peer

_SHOWN: Final = (
    ("ttft_mean_s", "TTFT mean s", 1.0, 3),
    ("ttft_p50_s", "p50", 1.0, 3),
    ("ttft_p99_s", "p99", 1.0, 2),
    ("itl_p99_s", "ITL p99 ms", 1e3, 0),
    ("e2e_mean_s", "E2E mean s", 1.0, 2),
    ("goodput", "goodput", 1.0, 3),
    ("hit_rate", "hits", 1.0, 3),
)
_HEADS: Final = (
    "peer",
    *(title for _, title, _, _ in _SHOWN),
    "shares %",
    "CPU ms / request",
    "us / event",
    "MiB",
    "requests",
    "not whole",
)


def peers_table(
    cells: Mapping[Peer, Sequence[Cell]], missing: Mapping[Peer, str], memory: Mapping[Peer, float]
) -> str:
    """A row a peer, means over its rounds; who could not run says why."""
    lines = [_line(_HEADS), _line(["---", *["---:"] * (len(_HEADS) - 1)])]
    for peer, runs in cells.items():
        figures = [_mean(runs, key, unit, digits) for key, _, unit, digits in _SHOWN]
        shares = [fmean(each) for each in zip(*(cell.shares for cell in runs), strict=True)]
        used = [
            f"{100 * min(shares):.0f} to {100 * max(shares):.0f}",
            f"{fmean(cell.cpu_ms_per_request for cell in runs):.2f}",
            f"{fmean(cell.cpu_us_per_event for cell in runs):.0f}",
            f"{memory[peer]:.0f}",
            str(sum(cell.requests for cell in runs)),
        ]
        lines.append(_line([peer.label, *figures, *used, _faults(runs)]))
    lines += [f"| {peer.label} | did not run: {reason} |" for peer, reason in missing.items()]
    return "\n".join(lines)


def both_table(
    cells: Mapping[Peer, Sequence[Cell]], virtual: Callable[[str], dict[str, float]]
) -> str:
    """Mean TTFT of our policies over HTTP, in the first round, and of the same in virtual time."""
    heads = ("policy", "TTFT mean s over HTTP", "in virtual time", "rank over HTTP", "rank there")
    ours = [peer for peer in cells if peer.name == "penstock"]
    http = {peer.rule: cells[peer][0].figures.get("ttft_mean_s", 0.0) for peer in ours}
    there = {peer.rule: virtual(peer.rule)["ttft_mean_s"] for peer in ours}
    ranks = [sorted(each, key=each.__getitem__) for each in (http, there)]
    lines = [_line(heads), _line(["---", *["---:"] * (len(heads) - 1)])]
    for rule in http:
        places = [str(rank.index(rule) + 1) for rank in ranks]
        lines.append(_line([rule, f"{http[rule]:.3f}", f"{there[rule]:.3f}", *places]))
    return "\n".join(lines)


def _mean(runs: Sequence[Cell], key: str, unit: float, digits: int) -> str:
    values = [cell.figures[key] * unit for cell in runs if key in cell.figures]
    return f"{fmean(values):.{digits}f}" if values else "-"


def _faults(runs: Sequence[Cell]) -> str:
    counts: dict[str, int] = {}
    for cell in runs:
        for fault, count in cell.faults.items():
            counts[fault] = counts.get(fault, 0) + count
    return ", ".join(f"{count} x {fault}" for fault, count in counts.items()) or "0"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
