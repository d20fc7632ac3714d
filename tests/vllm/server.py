"""One real vLLM on a port of this machine: start, kill, drain, and what its gauges say.

Its files are those of `make test-vllm`: an environment with the CPU build, named by
TEST_VLLM_VENV, and the tiny model beside it.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
VENV: Final = Path(os.environ.get("TEST_VLLM_VENV") or ROOT / ".vllm" / "venv").absolute()
MODEL_FOLDER: Final = ROOT / ".vllm" / "model"
OTHER_FOLDER: Final = ROOT / ".vllm" / "other"  # another model, of another family
MODEL: Final = "tiny"
CONTEXT_TOKENS: Final = 16_384  # of the tests' servers; by itself a VllmServer has 4,096
# 20 s alone on an idle machine, 35 s beside another; shared cores multiply that.
START_WITHIN_S: Final = 300.0
_RECEIVED: Final = re.compile(rb"Received request (\S+?):")
ENGINE_NICE: Final = 15
# 32,768 tokens of KV cache, so that it can be filled; blocks of a multiple of 32 are the
# only ones that the CPU's attention takes.
KV: Final = ("--num-gpu-blocks-override", "1024", "--block-size", "32")
# Loopback only, no telemetry, and one thread a process: two servers share few cores.
ENVIRONMENT: Final = {
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOOPBACK_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # for /pause, see abort_all
    "VLLM_ENABLE_RESPONSES_API_STORE": "1",  # responses are kept, and may be asked for
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",  # saves 12 s of its start
}


class VllmServer:
    """A vLLM process and its children, in a process group of their own."""

    def __init__(
        self,
        log: Path,
        *flags: str,
        models: Sequence[str] = (MODEL,),
        folder: Path = MODEL_FOLDER,
    ) -> None:
        """`folder` has the model, `models` are its names."""
        self._log = log
        self._models = models
        self._folder = folder
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        self._leaving = False
        self.port = _free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> "VllmServer":
        """Begin to load, in place of what still runs; returns at once."""
        self.kill()
        self._leaving = False
        length = () if "--max-model-len" in self._flags else ("--max-model-len", "4096")
        command = [
            *(str(VENV / "bin" / "vllm"), "serve", str(self._folder), "--load-format", "dummy"),
            *("--served-model-name", *self._models),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--enforce-eager", *length, "--max-num-seqs", "64"),
            # In bfloat16 the best two tokens often tie, and the batch decides between them.
            *("--dtype", "float32", "--enable-prefix-caching", *KV, *self._flags),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env=os.environ | ENVIRONMENT,
                stdout=log,
                stderr=log,
                process_group=0,  # no session: Linux gives each the same share, whatever is nice
            )
        return self

    def wait(self) -> "VllmServer":
        """Return when it serves. Raises AssertionError when it dies or takes too long."""
        until_s = time.monotonic() + START_WITHIN_S
        while time.monotonic() < until_s:
            assert self._process is not None
            assert self._process.poll() is None, f"vLLM died while loading; see {self._log}"
            if self.healthy():
                # A tiny model makes tokens faster than the API server can tell them, which
                # then sees no client leave and answers nobody until all are made.
                for pid in self._engine():
                    os.setpriority(os.PRIO_PROCESS, pid, ENGINE_NICE)
                return self
            time.sleep(0.2)
        raise AssertionError(f"vLLM took over {START_WITHIN_S:.0f} s to start; see {self._log}")

    @property
    def running(self) -> bool:
        """Whether its process lives, and is not on its way out."""
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        return self._process is not None and not self._leaving

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def gauge(self, name: str) -> float:
        """The sum of a metric's series, such as `vllm:num_requests_running`."""
        return self.gauges(name)[name]

    def gauges(self, *names: str) -> dict[str, float]:
        """The same of several metrics, as they were at one moment."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().split("\n")
        sums = {}
        for name in names:
            values = [float(line.split(" ")[-1]) for line in lines if line.startswith(f"{name}{{")]
            assert values, f"no metric {name}"
            sums[name] = sum(values)
        return sums

    def asked(self) -> set[str]:
        """The ids of all requests that reached it, if it has `--enable-log-requests`."""
        return {each.decode() for each in _RECEIVED.findall(self._log.read_bytes())}

    def busy(self) -> float:
        """Requests that its engine has running or waiting."""
        return self.gauge("vllm:num_requests_running") + self.gauge("vllm:num_requests_waiting")

    def drain(self) -> None:
        """SIGTERM: it ends when its requests have, or after its --shutdown-timeout."""
        assert self._process is not None
        self._leaving = True
        self._process.send_signal(signal.SIGTERM)

    def abort_all(self) -> None:
        """Give up every request, as an engine does that is about to be updated."""
        ask = urllib.request.Request(f"{self.url}/pause?mode=abort", method="POST")
        with urllib.request.urlopen(ask, timeout=30) as answer:
            assert answer.status == 200

    def kill_engine(self) -> None:
        """SIGKILL to the engine's process alone; the API server is left to find out."""
        os.kill(self._engine()[0], signal.SIGKILL)

    def _engine(self) -> list[int]:
        """The engine's process and its workers."""
        assert self._process is not None
        (core,) = (pid for pid in _children(self._process.pid) if b"EngineCore" in _name_of(pid))
        return [core, *_children(core)]

    def kill(self) -> None:
        """SIGKILL to all of it; returns when it is gone."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _name_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@contextlib.contextmanager
def running(servers: list[VllmServer]) -> Iterator[list[VllmServer]]:
    """They load at the same time, and are killed in the end."""
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait()
        yield servers
    finally:
        for server in servers:
            server.kill()


def _free_port() -> int:
    """A port nobody has now; vLLM cannot be asked which one it took."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
