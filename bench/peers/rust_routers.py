"""smg and vllm-router: LLM routers in Rust. No breaker and no retries, which no load here needs.

smg's `power_of_two` counts requests, the better of its two metrics for engines over HTTP.
vllm-router's `kv_aware` asks every backend for the tokens of every prompt (`/tokenize`).
"""

from collections.abc import Sequence
from pathlib import Path

from penstock.bench.peers import venvs
from penstock.bench.peers.peer import Running, serve, url
from penstock.bench.processes import free_port


def start_smg(backends: Sequence[int], folder: Path, rule: str) -> Running:
    program = venvs.environment("smg") / "bin" / "smg"
    return _start([str(program), "launch"], "smg", "warn", backends, rule, _SMG)


def start_vllm_router(backends: Sequence[int], folder: Path, rule: str) -> Running:
    program = venvs.environment("vllm-router") / "bin" / "vllm-router"
    return _start([str(program)], "vllm-router", "warning", backends, rule, [])


_SMG = ["--power-of-two-load-metric", "least_requests", "--load-monitor-interval", "1"]
_SMG += ["--max-concurrent-requests", "0"]


def _start(
    command: list[str],
    name: str,
    level: str,
    backends: Sequence[int],
    rule: str,
    more: list[str],
) -> Running:
    port, metrics_port = free_port(), free_port()
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    command += ["--policy", rule, "--log-level", level, "--health-check-interval-secs", "1"]
    command += ["--disable-circuit-breaker", "--disable-retries", *more]
    process = serve([*command, "--worker-urls", *map(url, backends)], port, health="/readiness")
    return Running(venvs.version(name), port, process.pid, process, metrics_port)
