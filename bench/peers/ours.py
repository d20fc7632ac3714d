"""penstock itself, and a bare pass-through on aiohttp: what a proxy costs the usual way."""

from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE

from bench.peers.peer import Running, url
from bench.processes import announced_port, await_health, first_line, python, start, stop


def start_penstock(backends: Sequence[int], folder: Path, rule: str) -> Running:
    arguments = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--policy", rule]
    arguments += ["--log-level", "error"]
    for port in backends:
        arguments += ["--backend", url(port)]
    process = start(python("proxy", "serve", *arguments), stdout=DEVNULL, stderr=PIPE)
    try:
        words = first_line(process.stderr, b" listening on ").split()
        port, admin_port = (
            _port_in(words[at + 1]) for at, word in enumerate(words) if word == "on"
        )
        await_health(port, process)
    except BaseException:
        stop(process)
        raise
    asked = start(python("proxy", "--version"), stdout=PIPE, stderr=DEVNULL)
    version = asked.communicate()[0].decode().strip()
    return Running(version, port, process.pid, process, admin_port)


def start_aiohttp(backends: Sequence[int], folder: Path, rule: str) -> Running:
    """Before the first backend only: it has no rule."""
    import aiohttp

    command = python("bench.peers.passthrough", url(backends[0]))
    process = start(command, stdout=PIPE, stderr=DEVNULL)
    port = announced_port(process)
    return Running(f"aiohttp {aiohttp.__version__}", port, process.pid, process)


def _port_in(address: str) -> int:
    return int(address.rstrip(",").rpartition(":")[2])
