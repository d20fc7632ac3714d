"""Runs of vLLM's own tests against a URL, and what came of each test."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import orjson

from tests.vllm.server import ENVIRONMENT, MODEL_FOLDER, ROOT, VENV

OWN: Final = Path(os.environ.get("TEST_VLLM_OWN") or ROOT / ".vllm" / "own").absolute()
TEST_WITHIN_S: Final = 60
RUN_WITHIN_S: Final = 2_400.0

Outcomes = dict[str, str]  # "" where a test passed, else why it did not


async def outcomes(url: str, tests: Iterable[str], log: Path) -> Outcomes:
    """Run tests, or all of files and folders, and return what became of each."""
    lines = log.with_suffix(".jsonl")
    lines.unlink(missing_ok=True)
    plugin = Path(__file__).parent
    environment = {
        "OWN_URL": url,
        "OWN_MODEL": str(MODEL_FOLDER),
        "OWN_OUTCOMES": str(lines),
        "PYTHONPATH": f"{OWN / 'packages'}:{plugin}",
    }
    with log.open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            *(str(VENV / "bin" / "python"), "-m", "pytest", "-c", "pytest.ini", "--rootdir", "."),
            *("-p", "stand_in", "-p", "no:cacheprovider", "-q", "--tb=short"),
            *("--timeout", str(TEST_WITHIN_S), "--continue-on-collection-errors", *tests),
            cwd=OWN,
            env=os.environ | ENVIRONMENT | environment,
            stdout=file,
            stderr=file,
        )
        try:
            await asyncio.wait_for(process.wait(), RUN_WITHIN_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert lines.exists(), f"no test was run; see {log}"
    return _read(lines)


def _read(lines: Path) -> Outcomes:
    """A test may have several lines, where what stands before or after it failed as well."""
    told: Outcomes = {}
    for line in lines.read_bytes().splitlines():
        each = orjson.loads(line)
        if each["outcome"] == "skipped":
            continue
        why = "" if each["outcome"] == "passed" else str(each["why"]) or "failed"
        told[each["test"]] = told.get(each["test"]) or why
    return told


def passed(told: Outcomes) -> set[str]:
    return {test for test, why in told.items() if not why}
