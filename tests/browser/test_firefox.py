"""The page in a real Firefox, by WebDriver BiDi."""

import asyncio
import os
import shutil
from pathlib import Path

import orjson

from tests.e2e.process import Serve, Simulate

FIREFOX = os.environ.get("FIREFOX") or shutil.which("firefox-esr") or shutil.which("firefox")
SCRIPT = Path(__file__).with_name("firefox.cjs")


async def test_the_page_lives_in_firefox_too(simulate: Simulate, serve: Serve, tools: Path) -> None:
    assert FIREFOX, "there is no Firefox: install Debian's firefox-esr, or set FIREFOX"
    penstock = await serve(await simulate(2))
    (tools / "shots").mkdir(exist_ok=True)
    arguments = (FIREFOX, f"{penstock.admin_url}/ui", str(tools / "shots" / "firefox.png"))
    process = await asyncio.create_subprocess_exec(
        "node",
        str(SCRIPT),
        *arguments,
        env=os.environ | {"NODE_PATH": str(tools / "node_modules")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0, err.decode()
    seen = orjson.loads(out)
    assert seen["faults"] == []
    assert seen["violations"] == []
    assert seen["sentence"]
    assert seen["charts"] == 2
    assert seen["tall"] <= 720
    assert "b1: wanted drain" in seen["toast"]
    assert [each["admin_state"] for each in await penstock.backends()] == ["ready", "drain"]
