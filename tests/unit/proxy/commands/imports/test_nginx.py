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


@pytest.mark.parametrize(
    ("header", "origins"),
    [
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


def test_a_backup_without_a_route_is_told(tmp_path: Path) -> None:
    upstream = UPSTREAM.replace("}", "server 10.0.0.3:8000 backup; }")
    _, remarks = served(LARGE_AND_SMALL.replace("10.0.0.1:8000", "vllm"), tmp_path, upstream)
    assert "Only a route would hold vllm-backup back until vllm fails." in remarks


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
