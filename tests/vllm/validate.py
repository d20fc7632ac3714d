"""A real vLLM of small KV cache for `penstock bench engine`: `python -m tests.vllm.validate`."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.validate_engine import main
from tests.vllm.server import VllmServer

if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        server = VllmServer(Path(folder) / "vllm.log")
        try:
            status = main(["--server", server.start().wait().url, *sys.argv[1:]])
        finally:
            server.kill()
    sys.exit(status)
