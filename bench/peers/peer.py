"""A peer: another proxy, started before the same backends as penstock, as one process.

All stream without buffering, keep connections to the backends and, where they can, have one
thread that moves bytes. penstock runs as it does by default, with its access log to /dev/null;
the others log nothing below warnings.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import STDOUT
from tempfile import TemporaryFile
from typing import Final

from penstock.bench.processes import NotStarted, await_health, start, stop

# What backends of the benchmarks serve, the name that some peers want to be told.
MODEL: Final = "sim-model"
# What every client sends to every peer: LiteLLM does not start without a key, a long one.
KEY: Final = "sk-only-for-benchmarks-on-loopback"


@dataclass(frozen=True, slots=True)
class Running:
    """A peer that serves. `pid` is the process that moves the bytes.

    `metrics_port` has its /metrics; `rewrites`: its answers are not the backend's bytes;
    `load_share` of a load is as much as it can carry of it.
    """

    version: str
    port: int
    pid: int
    process: subprocess.Popen[bytes]
    metrics_port: int | None = None
    rewrites: bool = False
    load_share: float = 1.0


# Starts a peer before backends at these ports of loopback, with a folder of its own; the last
# argument is the rule by which it chooses, in its own words.
Start = Callable[[Sequence[int], Path, str], Running]


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def program(name: str) -> str:
    """Where a program is; Debian keeps these where a plain user's PATH does not look."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")
    if found is None:
        raise NotStarted("not installed (Debian: apt-get install nginx-light haproxy)")
    return found


def serve(
    command: Sequence[str],
    port: int,
    *,
    health: str = "/health",
    within_s: float | None = None,
    more: dict[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program and wait until it serves; `more` is added to its environment."""
    with TemporaryFile() as said:
        process = start(command, stdout=said.fileno(), stderr=STDOUT, more=more)
        try:
            await_health(port, process, health, within_s)
        except NotStarted as error:
            stop(process)
            said.seek(0)
            last = said.read().decode(errors="replace").strip().splitlines()[-1:]
            raise NotStarted(f"{error}: {''.join(last)[:200]}") from None
        except BaseException:  # an interrupt too: nobody else knows of the process yet
            stop(process)
            raise
    return process


def version_of(command: Sequence[str]) -> str:
    """The first number with dots in what a program says of itself."""
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"\d+(?:\.\d+)+", answer.stdout + answer.stderr)
    return found[0] if found else "of unknown version"
