"""penstock itself, and a bare pass-through on aiohttp: what a proxy costs the usual way."""

from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Final

from penstock.bench import processes
from penstock.bench.peers.peer import Running, url
from penstock.bench.processes import await_health, python, start, start_server, stop

# With `+at_once` no request waits in the proxy. The clients of `bench overload` name their classes.
TRUSTING: Final = {"PENSTOCK_ADMISSION__TRUST_CLIENTS": "true"}
AT_ONCE: Final = TRUSTING | {"PENSTOCK_ADMISSION__ENABLED": "false"}


def start_penstock(backends: Sequence[int], folder: Path, rule: str) -> Running:
    policy, _, at_once = rule.partition("+")
    options = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--policy", policy]
    options += ["--log-level", "error"]
    for backend in backends:
        options += ["--backend", url(backend)]
    more = AT_ONCE if at_once else TRUSTING
    process, port, admin_port = processes.start_penstock(["penstock.proxy"], *options, more=more)
    try:
        await_health(port, process)
    except BaseException:
        stop(process)
        raise
    asked = start(python("penstock.proxy", "--version"), stdout=PIPE, stderr=DEVNULL)
    version = asked.communicate()[0].decode().strip()
    return Running(version, port, process.pid, process, admin_port)


def start_aiohttp(backends: Sequence[int], folder: Path, rule: str) -> Running:
    """Before the first backend only: it has no rule."""
    import aiohttp

    process, port = start_server("penstock.bench.peers.passthrough", url(backends[0]))
    return Running(f"aiohttp {aiohttp.__version__}", port, process.pid, process)
