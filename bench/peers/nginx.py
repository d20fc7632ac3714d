"""nginx, with one worker, no buffering and kept connections."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.bench.peers.peer import Running, program, serve, version_of
from penstock.bench.processes import children_of, free_port

_CONFIG: Final = """\
daemon off;
worker_processes 1;
worker_rlimit_nofile 16384;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    client_max_body_size 16m;
    client_body_buffer_size 2m;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 10000000;
    upstream backend {{
        {rule}
        {servers}
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
            proxy_read_timeout 600s;
        }}
    }}
}}
"""
# Its rules' names, as directives; round robin is no directive.
_DIRECTIVES: Final = {
    "round_robin": "",
    "least_conn": "least_conn;",
    "session": "hash $http_x_session_id consistent;",
}


def start(backends: Sequence[int], folder: Path, rule: str) -> Running:
    port = free_port()
    servers = "\n        ".join(f"server 127.0.0.1:{backend};" for backend in backends)
    text = _CONFIG.format(folder=folder, port=port, servers=servers, rule=_DIRECTIVES[rule])
    (folder / "nginx.conf").write_text(text)
    nginx = program("nginx")
    command = [nginx, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]
    process = serve(command, port)
    version = f"nginx {version_of([nginx, '-v'])}"
    return Running(version, port, children_of(process.pid)[0], process)
