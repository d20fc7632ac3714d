"""The peers: how each is started before the backend, as one process that is measured.

All stream without buffering, keep connections to the backend, and have one
thread that moves bytes. penstock runs as it does by default, with its access
log; nginx and HAProxy log nothing.
"""

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Final

from bench.overhead.processes import (
    NotStarted,
    await_health,
    children_of,
    first_line,
    free_port,
    python,
    start,
    stop,
)

_NGINX: Final = """\
daemon off;
worker_processes 1;
worker_rlimit_nofile 16384;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 10000000;
    upstream backend {{
        server 127.0.0.1:{backend};
        keepalive 512;
        keepalive_requests 10000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location / {{
            proxy_pass http://backend;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""

_HAPROXY: Final = """\
global
    nbthread 1
    maxconn 8192
defaults
    mode http
    option http-no-delay
    http-reuse always
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend all
    bind 127.0.0.1:{port} backlog 4096
    default_backend one
backend one
    server one 127.0.0.1:{backend}
"""


@dataclass(frozen=True, slots=True)
class Running:
    """A process that serves. `pid` is the one that moves the bytes."""

    version: str
    port: int
    pid: int
    process: subprocess.Popen[bytes]


def start_backend() -> Running:
    process = start(python("bench.overhead.backend"), stdout=PIPE, stderr=DEVNULL)
    return _announced(process, "")


def start_penstock(backend: int, folder: Path) -> Running:
    arguments = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0"]
    arguments += ["--backend", f"http://127.0.0.1:{backend}", "--log-level", "error"]
    process = start(python("proxy", "serve", *arguments), stdout=DEVNULL, stderr=PIPE)
    try:
        line = first_line(process.stderr, b" listening on ")
        words = line.split()
        port = int(words[words.index("on") + 1].rstrip(",").rpartition(":")[2])
        await_health(port, process)
    except Exception:
        stop(process)
        raise
    asked = start(python("proxy", "--version"), stdout=PIPE, stderr=DEVNULL)
    version = asked.communicate()[0].decode().strip()
    return Running(version, port, process.pid, process)


def start_nginx(backend: int, folder: Path) -> Running:
    program = _program("nginx")
    port = free_port()
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, port=port, backend=backend))
    command = [program, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]
    process = _served(command, port)
    return Running(_version(program, "-v"), port, children_of(process.pid)[0], process)


def start_haproxy(backend: int, folder: Path) -> Running:
    program = _program("haproxy")
    port = free_port()
    (folder / "haproxy.cfg").write_text(_HAPROXY.format(port=port, backend=backend))
    process = _served([program, "-db", "-f", str(folder / "haproxy.cfg")], port)
    return Running(_version(program, "-v"), port, process.pid, process)


def start_aiohttp(backend: int, folder: Path) -> Running:
    import aiohttp

    command = python("bench.overhead.passthrough", f"http://127.0.0.1:{backend}")
    process = start(command, stdout=PIPE, stderr=DEVNULL)
    return _announced(process, f"aiohttp {aiohttp.__version__}")


START: Final[dict[str, Callable[[int, Path], Running]]] = {
    "penstock": start_penstock,
    "nginx": start_nginx,
    "HAProxy": start_haproxy,
    "aiohttp": start_aiohttp,
}


def _program(name: str) -> str:
    """Where a program is; Debian keeps these where a plain user's PATH does not look."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")
    if found is None:
        raise NotStarted("not installed")
    return found


def _announced(process: subprocess.Popen[bytes], version: str) -> Running:
    """Wait for a process of ours that prints its port."""
    try:
        port = int(first_line(process.stdout))
        await_health(port, process)
    except Exception:
        stop(process)
        raise
    return Running(version, port, process.pid, process)


def _served(command: list[str], port: int) -> subprocess.Popen[bytes]:
    process = start(command, stdout=DEVNULL, stderr=DEVNULL)
    try:
        await_health(port, process)
    except Exception:
        stop(process)
        raise
    return process


def _version(program: str, flag: str) -> str:
    answer = subprocess.run([program, flag], capture_output=True, text=True, check=False)
    found = re.search(r"(?:nginx/|HAProxy version )(\d[\d.]*\d)", answer.stdout + answer.stderr)
    name = "nginx" if program.endswith("nginx") else "HAProxy"
    return f"{name} {found[1] if found else 'of unknown version'}"
