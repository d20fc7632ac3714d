"""A few rows of the fault matrix (`make faults` has all, with 200 streams each)."""

from pathlib import Path

import pytest

from tests.faults.matrix import FAULTS, fleet, run
from tests.faults.streams import Verdict

BY_NAME = {fault.name: fault for fault in FAULTS}
STREAMS = 24
# Of the 24, a quarter is at the one server that fails; how many may have been told so.
ROWS = {
    "SIGKILL": True,
    "SIGKILL before its first token": False,
    "cut at byte 1300": True,
    "RST at byte 3700": True,
    "error event after 5 tokens": True,
}


@pytest.mark.timeout(180)
async def test_no_client_is_deceived_left_waiting_or_given_anothers_bytes(tmp_path: Path) -> None:
    async with fleet() as servers:
        for name, told in ROWS.items():
            row = await run(BY_NAME[name], servers, tmp_path, STREAMS)
            assert row.problems(hidden=BY_NAME[name].hidden) == [], row
            assert row.verdicts.total() == STREAMS
            assert (row.verdicts[Verdict.TOLD] > 0) is told, row
            assert row.verdicts[Verdict.WHOLE] >= STREAMS // 2
            assert row.sdk[Verdict.TOLD] == len(BY_NAME[name].paths), row
