"""The load client, one process for one load: `python -m penstock.bench.overhead.client LOAD`.

LOAD is a load as JSON (see `loads`); the report is printed as JSON.
"""

import gc
import sys

import msgspec
import uvloop

from penstock.bench.overhead import first_byte, plain, streams
from penstock.bench.overhead.loads import (
    FirstByteLoad,
    FirstByteReport,
    Load,
    LoadReport,
    StreamLoad,
)


async def report_of(load: Load) -> LoadReport | FirstByteReport:
    if isinstance(load, StreamLoad):
        return await streams.run(load)
    if isinstance(load, FirstByteLoad):
        return await first_byte.run(load)
    return await plain.run(load)


def main(text: str) -> int:
    load = msgspec.json.decode(text, type=Load)
    gc.disable()  # short-lived, and a pause would be measured as the peer's
    print(msgspec.json.encode(uvloop.run(report_of(load))).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
