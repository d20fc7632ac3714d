"""What the image runs beside the proxy itself."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.e2e.process import Serve, Simulate

pytestmark = pytest.mark.once

DOCKERFILE = (Path(__file__).resolve().parents[2] / "Dockerfile").read_text()


async def healthcheck(admin_port: int, **environment: str) -> int:
    """Run the HEALTHCHECK's own command; returns its exit status."""
    matched = re.search(r"^HEALTHCHECK[^[]*CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert matched
    python, *arguments = json.loads(matched[1])
    assert python == "python"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env=os.environ | {"PENSTOCK_ADMIN__PORT": str(admin_port)} | environment,
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait()


async def test_the_health_check_passes_while_the_process_lives_whatever_its_fleet(
    serve: Serve, simulate: Simulate, unused_tcp_port: int
) -> None:
    (server,) = await simulate()
    penstock = await serve([server])
    assert await healthcheck(penstock.admin_port) == 0
    # A container's proxy for outgoing requests is not for this one.
    dead = f"http://127.0.0.1:{unused_tcp_port}"
    assert await healthcheck(penstock.admin_port, http_proxy=dead) == 0
    await server.stop()
    await penstock.until_ready(0)
    assert await healthcheck(penstock.admin_port) == 0


@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 503 Service Unavailable\r\n\r\n"])
async def test_the_health_check_fails_on_anything_but_a_200(answer: bytes | None) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is not None:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        assert await healthcheck(server.sockets[0].getsockname()[1]) != 0
