"""The figure of an experiment: mean TTFT and goodput over the load, a column a workload.

Needs matplotlib, which the extra `bench` installs.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from penstock.balancing.policies import POLICIES
from penstock.bench.report import BenchError
from penstock.bench.routing.cell import Cell
from penstock.bench.routing.interval import half_width

ROWS: Final = (("ttft_mean_s", "mean TTFT, s"), ("goodput", "goodput"))
PANEL_INCHES: Final = (4.2, 3.0)


def draw(found: Mapping[Cell, Mapping[str, float]], titles: Mapping[str, str], path: Path) -> None:
    """Write the figure; the kind of file is in its name. Raises BenchError, OSError.

    `titles` are the workloads' names, by what cells call them.
    """
    try:
        from matplotlib import rcParams
        from matplotlib.figure import Figure
    except ImportError:
        raise BenchError("matplotlib is missing: pip install matplotlib") from None
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * len(titles), height * len(ROWS)), layout="constrained")
    panels = figure.subplots(len(ROWS), len(titles), squeeze=False, sharex=True)
    for column, (trace, title) in enumerate(titles.items()):
        for row, (key, label) in enumerate(ROWS):
            panel = panels[row][column]
            for policy in dict.fromkeys(cell.policy for cell in found):
                mine = {c: f for c, f in found.items() if (c.trace, c.policy) == (trace, policy)}
                _line(panel, mine, key, policy)
            panel.set_ylabel(label)
            panel.grid(alpha=0.3)
        panels[0][column].set_title(title)
        panels[0][column].set_yscale("log")
        panels[-1][column].set_xlabel("load")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6)
    # Without a date and with the same names, so that the same figures make the same file.
    rcParams["svg.hashsalt"] = "penstock"
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _line(panel: Any, found: Mapping[Cell, Mapping[str, float]], key: str, policy: str) -> None:
    """One policy: means over the seeds with their 95 % intervals."""
    loads = sorted({cell.load for cell in found})
    runs: list[Sequence[float]] = [
        [figures[key] for cell, figures in found.items() if cell.load == load] for load in loads
    ]
    means = [statistics.fmean(values) for values in runs]
    ours = policy in POLICIES
    panel.errorbar(
        loads,
        means,
        yerr=[half_width(values) for values in runs],
        label=policy,
        marker="o",
        markersize=3,
        linewidth=2.0 if ours else 1.0,
        linestyle="-" if ours else "--",
        capsize=2,
    )
