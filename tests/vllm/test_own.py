"""vLLM's own HTTP tests, direct and through penstock: none passes direct only.

Its models are stood in for by the tiny one, so what needs their weights fails both ways and
says nothing.
"""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.process import Serve
from tests.vllm.own.differences import DIFFERENCES
from tests.vllm.own.groups import GROUPS, Group, write_generation_config
from tests.vllm.own.runs import OWN, outcomes, passed
from tests.vllm.server import MODEL, VllmServer

# What a test that samples at random may need to show that it can pass.
RUNS: Final = 3
VOCABULARY: Final = 4_096
LONG: Final = ("--max-model-len", "8192")
OPT_IN: Final = ["GET /tokenizer_info", "GET /version", "GET /load"]


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
async def test_none_of_vllms_own_tests_passes_direct_only(
    group: Group, serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_generation_config(tmp_path, VOCABULARY)
    flags = (*group.flags, *LONG, "--generation-config", str(tmp_path))
    server = VllmServer(tmp_path / "vllm.log", *flags, models=[MODEL, *group.models(OWN)])
    try:
        server.start()
        await asyncio.to_thread(server.wait)
        penstock = await serve([server.url], paths=OPT_IN, health={"interval_s": 2})
        direct = await outcomes(server.url, group.paths(), tmp_path / "direct.log")
        well = passed(direct)
        through = await outcomes(penstock.url, sorted(well), tmp_path / "through.log")
        only = well - passed(through)
        with capsys.disabled():
            print(f"\n{group.name}: {len(direct)} run, {len(well)} pass direct,", end=" ")
            print(f"{len(well) - len(only)} of them through penstock at the first try")
        for run in range(1, RUNS):
            unsure = sorted(only - set(DIFFERENCES))
            if not unsure:
                break
            only &= passed(await outcomes(server.url, unsure, tmp_path / f"direct{run}.log"))
            through |= await outcomes(penstock.url, unsure, tmp_path / f"through{run}.log")
            only -= passed(through)
    finally:
        server.kill()
    worse = {test: through.get(test, "not run") for test in only - set(DIFFERENCES)}
    assert not worse, "\n".join(f"{test}: {why}" for test, why in sorted(worse.items()))
