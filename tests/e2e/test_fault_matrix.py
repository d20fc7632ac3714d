"""A few rows of the fault matrix (`make faults` has all, with 200 streams each)."""

from pathlib import Path

import pytest

from tests.faults.matrix import FAULTS, fleet, run
from tests.faults.streams import Verdict

BY_NAME = {fault.name: fault for fault in FAULTS}
STREAMS = 24
ROWS = (
    "SIGKILL",
    "SIGKILL before its first token",
    "RST at byte 3700",
    "error event after 5 tokens",
)


@pytest.mark.timeout(180)
async def test_no_client_is_deceived_left_waiting_or_given_anothers_bytes(tmp_path: Path) -> None:
    async with fleet() as servers:
        for name in ROWS:
            fault = BY_NAME[name]
            row = await run(fault, servers, tmp_path, STREAMS)
            assert row.problems(hidden=fault.hidden) == [], row
            assert row.verdicts.total() == STREAMS
            if fault.during_all:
                assert row.verdicts[Verdict.TOLD] > 0, row
                assert row.sdk[Verdict.TOLD] == len(fault.paths), row
