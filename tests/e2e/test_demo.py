"""`penstock demo`: what somebody who tries it sees first."""

import asyncio
import os
import re
import resource
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest

from penstock.proxy.commands.cli import DEMO_BREAKS
from penstock.proxy.commands.demo import ADMIN_PORT, BREAKS
from tests.e2e.process import ROOT

pytestmark = pytest.mark.once

STARTS_WITHIN_S = 60.0
# What a shell has before anybody raises it.
DESCRIPTORS = 1_024


def _as_in_a_shell() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))


@asynccontextmanager
async def demo(*flags: str) -> AsyncIterator[list[str]]:
    """A running demo: what it says, up to its last line. Ctrl-C in a terminal ends it.

    Where make runs it, it gets that signal twice: make passes it on.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy", "demo", *flags),
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=_as_in_a_shell,
    )
    assert process.stderr is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(STARTS_WITHIN_S):
            while "Stop with Ctrl-C" not in (lines or [""])[-1]:
                line = (await process.stderr.readline()).decode()
                assert line, lines
                lines.append(line)
        yield lines
    finally:
        process.send_signal(signal.SIGINT)
        await asyncio.sleep(0.1)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        _, told = await asyncio.wait_for(process.communicate(), 20)
        lines += told.decode().splitlines(keepends=True)


def test_every_fault_of_the_demo_is_an_option() -> None:
    assert tuple(BREAKS) == DEMO_BREAKS


@pytest.mark.timeout(90)
async def test_a_broken_demo_names_its_server() -> None:
    async with demo("--admin-port", "0", "--break", "errors") as lines:
        text = "".join(lines)
        found = re.search(r"^    (\S.* status --admin http://127.0.0.1:\d+)$", text, re.M)
        assert found, text
        told = ""
        for _ in range(60):
            _, told = await ran(found[1])
            if "Failing: b0 is out" in told:
                break
            await asyncio.sleep(1.0)
        assert "Failing: b0 is out" in told, told
        assert "\n2 of 3 can serve, 1 more only as a last resort\n" in told


async def ran(command: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *shlex.split(command), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), STARTS_WITHIN_S)
    return process.returncode or 0, out.decode()


@pytest.mark.timeout(90)
async def test_the_demo_says_what_to_try() -> None:
    async with demo("--backends", "2", "--admin-port", "0") as lines:
        text = "".join(lines)
        assert lines[0].startswith("penstock is serving 2 simulated vLLM servers"), text
        assert "WARNING" not in text
        assert "gibberish" in text
        found = re.search(r"^    (\S.* status --admin http://127.0.0.1:\d+)$", text, re.M)
        assert found, text
        status, told = await ran(found[1])
        assert status == 0
        assert "\n2 of 2 can serve\n" in told
        page = re.search(r"^    (http://127.0.0.1:\d+)/ui$", text, re.M)
        assert page, text
        # A little traffic keeps the page alive.
        async with asyncio.timeout(STARTS_WITHIN_S), aiohttp.ClientSession(page[1]) as session:
            while True:
                async with session.get("/api/v1/requests") as answer:
                    if [each for each in await answer.json() if each["status"] == 200]:
                        break
                await asyncio.sleep(0.2)


@pytest.mark.timeout(90)
async def test_the_demo_leaves_a_taken_admin_port_alone() -> None:
    with socket.socket() as usual:
        with suppress(OSError):  # somebody else has it, which is the same
            usual.bind(("127.0.0.1", ADMIN_PORT))
            usual.listen()
        async with demo("--backends", "1") as lines:
            found = re.search(r"status --admin http://127.0.0.1:(\d+)", "".join(lines))
            assert found
            assert int(found[1]) != ADMIN_PORT
