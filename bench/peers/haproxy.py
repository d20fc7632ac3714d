"""HAProxy, with one thread, which waits for no more bytes before it sends."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.bench.peers.peer import Running, program, serve, version_of
from penstock.bench.processes import free_port

_CONFIG: Final = """\
global
    nbthread 1
    maxconn 8192
defaults
    mode http
    option http-no-delay
    http-reuse always
    timeout connect 5s
    timeout client 600s
    timeout server 600s
frontend all
    bind 127.0.0.1:{port} backlog 4096
    default_backend all
backend all
    balance {rule}
{servers}
"""


def start(backends: Sequence[int], folder: Path, rule: str) -> Running:
    port = free_port()
    servers = "\n".join(f"    server b{i} 127.0.0.1:{at}" for i, at in enumerate(backends))
    (folder / "haproxy.cfg").write_text(_CONFIG.format(port=port, rule=rule, servers=servers))
    haproxy = program("haproxy")
    process = serve([haproxy, "-db", "-f", str(folder / "haproxy.cfg")], port)
    return Running(f"HAProxy {version_of([haproxy, '-v'])}", port, process.pid, process)
