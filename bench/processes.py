"""Child processes: started, asked for their port, and ended whatever happens."""

import http.client
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

START_S: Final = 15.0
END_S: Final = 3.0


class NotStarted(Exception):
    """A process did not start, did not serve in time, or serves no more."""


def python(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def start(
    command: Sequence[str], *, stdout: int, stderr: int, more: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process, without any setting of penstock's that the environment may hold.

    `more` is added to its environment. Raises NotStarted.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")
    }
    environment |= {"PENSTOCK_DRAIN__GRACE_S": "0", **(more or {})}
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            cwd=Path(__file__).parents[1],
        )
    except OSError as error:
        raise NotStarted(f"{command[0]}: {error.strerror}") from None


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process, politely for END_S."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def first_line(pipe: IO[bytes] | None, holding: bytes = b"") -> str:
    """The first line that holds some bytes, read within START_S. Raises NotStarted."""
    return first_lines(pipe, holding, 1)[0]


def first_lines(pipe: IO[bytes] | None, holding: bytes, count: int) -> list[str]:
    """The first so many lines that hold some bytes, read within START_S. Raises NotStarted."""
    assert pipe is not None
    os.set_blocking(pipe.fileno(), False)
    text = b""
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        if select.select([pipe], [], [], 0.2)[0]:
            data = os.read(pipe.fileno(), 65_536)
            if not data:
                break
            text += data
            found = [line.decode() for line in text.split(b"\n")[:-1] if holding in line]
            if len(found) >= count:
                return found[:count]
    raise NotStarted(text.decode(errors="replace").strip()[-500:] or "it said nothing")


def announced_port(process: subprocess.Popen[bytes]) -> int:
    """The port that a process of ours prints, once it serves there. Raises NotStarted."""
    try:
        port = int(first_line(process.stdout))
        await_health(port, process)
    except BaseException:
        stop(process)
        raise
    return port


def await_health(
    port: int,
    process: subprocess.Popen[bytes],
    path: str = "/health",
    within_s: float | None = None,
) -> None:
    """Wait until GET `path` answers 200 through this port. Raises NotStarted."""
    within_s = START_S if within_s is None else within_s
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if process.poll() is not None:
            raise NotStarted(f"exit status {process.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.05)
    raise NotStarted(f"no 200 from {path} within {within_s:g} s")


def free_port() -> int:
    """A port that is free now, for programs that cannot take port 0."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def children_of(pid: int) -> list[int]:
    """Direct children of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found
