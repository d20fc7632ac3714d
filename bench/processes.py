"""Child processes: started, asked for their port, and ended whatever happens."""

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import IO, Final, TypeVar

import msgspec

from penstock.bench.client import HOST, call
from penstock.bench.report import BenchError

START_S: Final = 15.0
END_S: Final = 3.0
R = TypeVar("R", bound=msgspec.Struct)


class NotStarted(BenchError):
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
            cwd=Path(__file__).resolve().parents[1],
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


def first_lines(pipe: IO[bytes] | None, holding: bytes = b"", count: int = 1) -> list[str]:
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
                os.set_blocking(pipe.fileno(), True)
                return found[:count]
    raise NotStarted(text.decode(errors="replace").strip()[-500:] or "it said nothing")


def start_server(module: str, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a module of ours that prints its port; returns once it serves there.

    Raises NotStarted.
    """
    process = start(python(module, *arguments), stdout=PIPE, stderr=DEVNULL)
    try:
        port = int(first_lines(process.stdout)[0])
        await_health(port, process)
    except BaseException:
        stop(process)
        raise
    return process, port


@contextmanager
def server(module: str) -> Iterator[str]:
    """The URL of such a module meanwhile. Raises NotStarted."""
    process, port = start_server(module)
    try:
        yield f"http://{HOST}:{port}"
    finally:
        stop(process)


def start_penstock(
    module: Sequence[str], *options: str, more: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], int, int]:
    """Start `serve` of a module, `penstock.proxy` as a rule; its data port and its admin port.

    What it logs comes through its `stderr`. Raises NotStarted.
    """
    process = start(python(*module, "serve", *options), stdout=DEVNULL, stderr=PIPE, more=more)
    try:
        words = first_lines(process.stderr, b" listening on ")[0].split()
        port, admin_port = (
            int(words[at + 1].rstrip(",").rpartition(":")[2])
            for at, word in enumerate(words)
            if word == "on"
        )
    except BaseException:
        stop(process)
        raise
    return process, port, admin_port


def report_of(module: str, question: msgspec.Struct, kind: type[R], within_s: float) -> R:
    """What a module of ours answers to a question, both JSON. Raises NotStarted."""
    command = python(module, msgspec.json.encode(question).decode())
    try:
        done = subprocess.run(command, capture_output=True, timeout=within_s, check=False)
    except subprocess.TimeoutExpired:
        raise NotStarted(f"the client took more than {within_s:g} s") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise NotStarted(f"the client failed: {''.join(last)}")
    return msgspec.json.decode(done.stdout, type=kind)


def await_health(
    port: int,
    process: subprocess.Popen[bytes],
    path: str = "/health",
    within_s: float = START_S,
) -> None:
    """Wait until GET `path` answers 200 through this port. Raises NotStarted."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if process.poll() is not None:
            raise NotStarted(f"exit status {process.returncode}")
        with contextlib.suppress(OSError):
            if call(port, "GET", path, within_s=1.0)[0] == 200:
                return
        time.sleep(0.05)
    raise NotStarted(f"no 200 from {path} within {within_s:g} s")


def free_port() -> int:
    """A port that is free now, for programs that cannot take port 0."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


def children_of(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found
