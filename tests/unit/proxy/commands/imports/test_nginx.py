"""What becomes of the parts of nginx's configuration."""

import re
from pathlib import Path

import pytest

from penstock.conf.issues import ConfigError
from penstock.conf.kinds import AMOUNT_MAX
from penstock.conf.settings import Settings
from penstock.proxy.commands.imports.command import imported
from penstock.proxy.commands.imports.nginx_syntax import Directive, bytes_of, read_nginx, seconds_of
from tests.unit.proxy.commands.imports.carried import carried

pytestmark = pytest.mark.once

UPSTREAM = "upstream vllm { server 10.0.0.1:8000; server 10.0.0.2:8000; }"
PASS = "location / { proxy_pass http://vllm; }"


def read(text: str, folder: Path) -> tuple[Settings, str]:
    loaded, remarks = carried("nginx", text, folder)
    return loaded.settings, remarks


def served(locations: str, folder: Path, upstream: str = UPSTREAM) -> tuple[Settings, str]:
    return read(f"{upstream} server {{ listen 8080; {locations} }}", folder)


def test_an_upstream_is_a_pool(tmp_path: Path) -> None:
    settings, remarks = served(PASS, tmp_path)
    (pool,) = settings.pools
    assert (pool.name, pool.policy) == ("vllm", "token_cost")
    found = [f"{each.name} {each.url}" for each in pool.backends]
    assert found == ["vllm-0 http://10.0.0.1:8000", "vllm-1 http://10.0.0.2:8000"]
    assert settings.routes == ()
    assert settings.listen.port == 8080
    assert "nginx takes turns (`policy: round_robin`). The default counts tokens." in remarks


@pytest.mark.parametrize(
    ("directive", "policy"),
    [
        ("least_conn;", "least_requests"),
        ("random;", "random"),
        ("random two least_conn;", "power_of_two"),
        ("least_time last_byte;", "peak_ewma"),
        ("ip_hash;", "session"),
        ("hash $http_x_user_id consistent;", "session"),
    ],
)
def test_how_servers_are_chosen(directive: str, policy: str, tmp_path: Path) -> None:
    settings, remarks = served(PASS, tmp_path, UPSTREAM.replace("{", f"{{ {directive}", 1))
    assert settings.pools[0].policy == policy
    hashed = "x-user-id" if "x_user" in directive else "x-session-id"
    assert settings.affinity.headers == (hashed,)
    assert ("by the client's address" in remarks) == (directive == "ip_hash;")


def test_servers_have_weights_limits_and_backups(tmp_path: Path) -> None:
    upstream = """upstream vllm {
        server 10.0.0.1 weight=3 max_conns=64 max_fails=2;
        server gpu-1:8000 backup;
        server 10.0.0.3:8000 down;
        server unix:/run/vllm.sock;
    }"""
    settings, remarks = served(PASS, tmp_path, upstream)
    main, backup = settings.pools
    (first,) = main.backends
    assert (first.url, first.weight, first.max_requests) == ("http://10.0.0.1:80", 3, 64)
    assert main.policy == "round_robin"
    assert [each.url for each in backup.backends] == ["http://gpu-1:8000"]
    (route,) = settings.routes
    (fallback,) = route.fallbacks
    assert [each.pool for each in (*route.to, fallback)] == ["vllm", "vllm-backup"]
    assert fallback.on == ("no_backend", "errors")
    assert "(line 2): max_fails. `health` says" in remarks
    assert "(line 4): server 10.0.0.3:8000 down." in remarks
    assert "(line 5): server. A backend is a host and a port." in remarks


LARGE_AND_SMALL = """location /large/ { proxy_pass http://10.0.0.1:8000/v1/; }
    location /small/ { proxy_pass http://10.0.0.2:8000/v1/; }"""


@pytest.mark.parametrize(
    ("locations", "routes", "told"),
    [
        (  # routes have the order in which nginx takes locations
            f"""{PASS} location /v1/ {{ proxy_pass http://vllm; }}
            location /v1/embeddings {{ proxy_pass http://10.0.0.8:1; }}
            location = /v1/rerank {{ proxy_pass http://embed-0; }}""",
            ["/v1/rerank embed-0", "/v1/embeddings* backend", "/v1/* vllm", "* vllm"],
            "",
        ),
        (  # a path without a location stays unserved
            """location /v1/ { proxy_pass http://vllm; }
            location = /v1/embeddings { proxy_pass http://10.0.0.8:1; }""",
            ["/v1/embeddings backend", "/v1/* vllm", "* This path is not served."],
            "",
        ),
        (  # a path that nginx replaces is told
            """location /llm/ { proxy_pass http://vllm/v1/; }
            location = / { proxy_pass http://e:1; }""",
            ["/ e", "/v1/* vllm", "* This path is not served."],
            "Clients now ask for /v1/, where nginx had /llm/",
        ),
        (  # a folder for each model is how nginx tells them apart; penstock reads their names
            LARGE_AND_SMALL.replace("/v1/", "/")
            + "location = /v1/embeddings { proxy_pass http://embed-0:8000; }",
            ["/v1/embeddings embed-0"],
            "location /small/ (line 2) has the path of another location now",
        ),
        (  # and a path around theirs is no route
            f"{LARGE_AND_SMALL} {PASS} location /v1/embeddings {{ proxy_pass http://e:1; }}",
            ["/v1/embeddings* e"],
            "Clients now ask for /v1/, where nginx had /small/",
        ),
    ],
)
def test_locations_are_routes(locations: str, routes: list[str], told: str, tmp_path: Path) -> None:
    settings, remarks = served(locations, tmp_path)
    assert routes == [
        " ".join([*(each.match.path or "*"), each.refuse or each.to[0].pool])
        for each in settings.routes
    ]
    assert told in remarks
    assert len(settings.pools) == len(set(re.findall(r"proxy_pass http://([^/;]+)", locations)))


def test_what_is_no_engine_gets_no_pool(tmp_path: Path) -> None:
    settings, remarks = served(
        """location / { proxy_pass http://webapp:3000; }
        location /grafana/ { proxy_pass http://grafana:3000; }
        location /v1/ { proxy_pass http://vllm; }""",
        tmp_path,
    )
    assert [each.name for each in settings.pools] == ["vllm"]
    assert remarks.count("penstock serves the APIs of engines only") == 2


@pytest.mark.parametrize(
    ("header", "origins"),
    [
        ("Access-Control-Allow-Origin https://chat.example.com", ("https://chat.example.com",)),
        ('Access-Control-Allow-Origin "$http_origin"', ("*",)),
        ("Access-Control-Allow-Methods GET", ()),
    ],
)
def test_the_pages_that_may_ask_go_along(
    header: str, origins: tuple[str, ...], tmp_path: Path
) -> None:
    location = f"location / {{ proxy_pass http://vllm; add_header {header}; }}"
    settings, _ = served(location, tmp_path)
    assert settings.listen.cors_origins == origins


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("location ~ ^/v2 { proxy_pass http://vllm; }", "Routes match paths exactly"),
        ("location /x { proxy_pass http://$backend; }", "without variables"),
        ("location /tokenize { proxy_pass http://none; }", None),  # a host of this name
        ("location /x { proxy_pass http://unix:/run/x; }", "without variables"),
        ("location /health { return 200; }", "It leads to no backend"),
        ("location /tokenize { proxy_pass http://down; }", "Its target has no server"),
        ("location /static { proxy_pass http://e:1; }", "the APIs of engines only"),
        ("location /v1* { proxy_pass http://vllm; }", "the APIs of engines only"),
    ],
)
def test_locations_that_cannot_be_carried_over(
    location: str, why: str | None, tmp_path: Path
) -> None:
    down = "upstream down { server 10.0.0.5:1 down; }"
    settings, remarks = served(PASS + location, tmp_path, f"{UPSTREAM} {down}")
    assert (why or "") in remarks
    assert len(settings.pools) == (2 if why is None else 1)


def test_a_backup_without_a_route_is_told(tmp_path: Path) -> None:
    upstream = UPSTREAM.replace("}", "server 10.0.0.3:8000 backup; }")
    _, remarks = served(LARGE_AND_SMALL.replace("10.0.0.1:8000", "vllm"), tmp_path, upstream)
    assert "Only a route would hold vllm-backup back until vllm fails." in remarks


def test_tls_on_both_sides(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").touch()
    settings, remarks = read(
        f"""{UPSTREAM} server {{
            listen 443 ssl; listen [::]:443 ssl; listen 8443 ssl;
            ssl_certificate tls.crt; ssl_certificate_key tls.key;
            proxy_ssl_trusted_certificate ca.crt;
            location / {{ proxy_pass https://vllm; }}
        }}""",
        tmp_path,
    )
    assert (settings.listen.host, settings.listen.port) == ("::", 443)
    (pool,) = settings.pools
    assert pool.backends[0].url == "https://10.0.0.1:8000"
    assert settings.listen.tls
    assert settings.listen.tls.cert_file.endswith("/tls.crt")
    assert pool.tls
    assert pool.tls.ca_file
    assert "listen 8443. penstock has one data port" in remarks
    assert "nginx does not verify the backends' certificates. penstock does." in remarks


def test_times_and_sizes(tmp_path: Path) -> None:
    settings, remarks = read(
        f"""events {{ worker_connections 2048; }}
        http {{
            {UPSTREAM} client_max_body_size 2g; keepalive_timeout 65; send_timeout 1m;
            server {{
                client_header_timeout 5s; client_body_timeout 1h30m;
                location /v1/ {{ proxy_pass http://vllm; proxy_read_timeout 30; }}
                location / {{
                    proxy_pass http://vllm; proxy_read_timeout 5m; proxy_connect_timeout 500ms;
                }}
            }}
        }}""",
        tmp_path,
    )
    times, limits = settings.timeouts, settings.limits
    assert (times.connect_s, times.first_byte_s, times.idle_s) == (0.5, 300, 300)
    assert (times.client_head_s, times.client_body_s) == (5, 5400)
    assert (times.client_idle_s, times.client_stall_s) == (65, 60)
    assert (limits.body_bytes, limits.bodies_bytes, limits.connections) == (2**31, 2**31, 2048)
    assert "Locations differ in proxy_read_timeout: the largest counts for all." in remarks
    assert settings.listen.port == 80


@pytest.mark.parametrize("number", ["9" * 5_000, "9" * 400, "99999999999999999999"])
def test_numbers_of_any_length_are_read(number: str, tmp_path: Path) -> None:
    settings, _ = read(
        f"""events {{ worker_connections {number}; }}
        http {{
            client_max_body_size {number}g; client_body_timeout {number}s;
            upstream vllm {{ server a:1 weight={number} max_conns={number}; server b:1 weight=²; }}
            server {{ location / {{ proxy_pass http://vllm; }} }}
        }}""",
        tmp_path,
    )
    (pool,) = settings.pools
    assert [each.weight for each in pool.backends] == [1000, 1]
    assert [each.max_requests for each in pool.backends] == [AMOUNT_MAX, None]


def test_a_fixed_key_for_backends_is_a_variable(tmp_path: Path) -> None:
    header = 'proxy_set_header Authorization "Bearer sk-secret"; proxy_set_header X-A "secret";'
    settings, remarks = served(f"location / {{ proxy_pass http://vllm; {header} }}", tmp_path)
    (pool,) = settings.pools
    assert pool.api_key is not None
    assert pool.forward_authorization == "pool"
    assert "give it as BACKEND_API_KEY." in remarks
    assert "proxy_set_header x-a. `set.headers` of a route may do." in remarks
    assert "secret" not in remarks


def test_what_else_there_is_is_told_with_its_line(tmp_path: Path) -> None:
    settings, remarks = read(
        f"""limit_req_zone $remote_addr zone=a:1m rate=5r/s;
        {UPSTREAM}
        server {{ listen 1; return 301 https://x; }}
        server {{ listen 8080 http2; auth_basic "hush"; foo bar; sendfile on; {PASS} }}
        server {{ listen 8081; {PASS} }}""",
        tmp_path,
    )
    assert "(line 1): limit_req_zone $remote_addr zone=a:1m rate=5r/s." in remarks
    assert "(line 3): server. It leads to no backend." in remarks
    assert "(line 4): listen … http2." in remarks
    assert "(line 4): auth_basic. `tenants` says which keys clients may have." in remarks
    assert "Not carried over: foo (line 4)." in remarks
    assert "(line 5): server. penstock has one data port" in remarks
    assert not {"sendfile", "hush", "bar"} & set(remarks.split())
    assert settings.listen.port == 8080


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("server {\n listen 80;\n", "theirs:1: the block of server is not closed"),
        ("a b\nserver {}\n}", "theirs:3: this } closes nothing"),
        ("server {\n listen 80\n}", "theirs:3: listen must end with ; or a block"),
        ("\n;", "theirs:2: a directive must stand before ;"),
        ('server { x; "sk-secret" }', "theirs:1: a directive must end with ; or a block"),
        ('a\n "b;', "theirs:2: a quote is not closed"),
        ("a b", "theirs:1: a must end with ; or a block"),
        ("a {" * 50, "theirs:1: blocks nest deeper than 32"),
        ("server { x_by_lua_block {} }", "theirs:1: x_by_lua_block holds Lua"),
        ("server { listen 80; }", "theirs:1: has no server with a location that has proxy_pass"),
        ("\nserver { location / { proxy_pass $x; } }", "theirs:2: no location of this server"),
    ],
)
def test_mistakes_name_their_line(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        imported("nginx", text, "theirs")
    assert told in str(refused.value)


def test_directives_and_their_lines() -> None:
    text = """a 1;  # no b;
c "x y" 'it''s' ${v}z;
d "say \\"hi\\"" a\\ b #;
;
e { f; g { h 2; } }
i b"c"d#e;  # a quote or a hash within a word is part of it
"""
    inner = [Directive("f", (), 5), Directive("g", (), 5, [Directive("h", ("2",), 5)])]
    assert read_nginx(text, "x").block == [
        Directive("a", ("1",), 1),
        Directive("c", ("x y", "it", "s", "${v}z"), 2),
        Directive("d", ('say "hi"', "a\\ b"), 3),
        Directive("e", (), 5, inner),
        Directive("i", ('b"c"d#e',), 6),
    ]


def test_times_and_sizes_are_read() -> None:
    times = {"60": 60, "5m": 300, "1h 30m": 5400, "500ms": 0.5, "1d": 86400}
    sizes = {"1": 1, "8k": 8192, "32M": 2**25, "1g": 2**30}
    assert {text: seconds_of(text) for text in times} == times
    assert {text: bytes_of(text) for text in sizes} == sizes
    assert {seconds_of(text) for text in ("", "x", "5x", "1.5s", "-1")} == {None}
    assert {bytes_of(text) for text in ("", "x", "1t", "1.5m")} == {None}
