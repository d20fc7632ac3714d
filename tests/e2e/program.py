"""Another program, run to its end."""

import asyncio
from pathlib import Path


async def run(*command: str, folder: Path | None = None, within_s: float = 20.0) -> bytes:
    """A command that must succeed: what it wrote to stdout. It runs in `folder`."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(within_s):
            stdout, stderr = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, f"{command[0]} failed: {stderr.decode()[-2000:]}"
    return stdout
