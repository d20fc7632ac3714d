"""`python -m tests.faults [--streams N] [NAME…]`: the fault matrix as one table.

Exit status 1 when a client was deceived, left waiting or given another's bytes.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from pathlib import Path

from penstock.bench.arguments import count
from tests.faults.matrix import FAULTS, Row, fleet, run
from tests.faults.streams import Verdict

COLUMNS = (
    "fault", "streams", "whole", "told broken", "by status", "hidden", "silent trunc.",
    "hangs", "mixed bytes", "SDK whole/raised/other", "zero after s",
)  # fmt: skip


def line(row: Row) -> tuple[str, ...]:
    told, sdk = row.verdicts, row.sdk
    other = sum(sdk.values()) - sdk[Verdict.WHOLE] - sdk[Verdict.TOLD]
    numbers = (
        told.total(), told[Verdict.WHOLE], told[Verdict.TOLD], row.refused, told[Verdict.HIDDEN],
        told[Verdict.SILENT], told[Verdict.HUNG], told[Verdict.MIXED] + row.mixed_upstream,
    )  # fmt: skip
    return (
        row.fault,
        *map(str, numbers),
        f"{sdk[Verdict.WHOLE]}/{sdk[Verdict.TOLD]}/{other}",
        f"{row.zero_after_s:.2f}",
    )


def tell(cells: tuple[str, ...]) -> None:
    widths = [max(30, len(COLUMNS[0])), *(len(name) for name in COLUMNS[1:])]
    first, *rest = zip(cells, widths, strict=True)
    numbers = (cell.rjust(width) for cell, width in rest)
    print("  ".join([first[0].ljust(first[1]), *numbers]), flush=True)


async def main(names: list[str], streams: int) -> int:
    wrong: list[str] = []
    tell(COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        async with fleet() as servers:
            for fault in FAULTS:
                if names and not any(name in fault.name for name in names):
                    continue
                row = await run(fault, servers, Path(folder), streams)
                tell(line(row))
                wrong += [f"{fault.name}: {each}" for each in row.problems(hidden=fault.hidden)]
    print("\n".join(wrong) or "no client was deceived, left waiting or given another's bytes")
    return int(bool(wrong))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("names", nargs="*", help="only the rows whose names hold one of these")
    parser.add_argument("--streams", type=count, default=200)
    options = parser.parse_args()
    for name in options.names:
        if not any(name in fault.name for fault in FAULTS):
            parser.error(f"no row's name holds {name!r}")
    # As an interrupt does, so that the proxies that it has started end with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(asyncio.run(main(options.names, options.streams)))
    except KeyboardInterrupt:
        sys.exit(130)
