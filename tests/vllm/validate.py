"""A real vLLM of small KV cache for `penstock bench engine`: `python -m tests.vllm.validate`."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.bench.cli import run
from tests.vllm.server import VllmServer

if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        server = VllmServer(Path(folder) / "vllm.log")
        try:
            status = run("engine", "--server", server.start().wait().url, *sys.argv[1:])
        finally:
            server.kill()
    sys.exit(status)
