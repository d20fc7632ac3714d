"""Whatever is imported: the configuration is valid, or the file's mistakes are told."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.conf.issues import ConfigError, Issue
from tests.unit.proxy.commands.imports.carried import carried

pytestmark = pytest.mark.once

# What is right comes often, or no whole file would be.
NAMES: Final = st.sampled_from(
    [
        *("a", "b", "a/b") * 9,
        *("x*", "*", "$HOME", "${X}", "1", "true", "a b", "é", "-", "#x", ": ", ""),
    ]
)
URLS: Final = st.sampled_from(
    [
        *("http://10.0.0.1:8000/v1", "http://10.0.0.2:8000", "https://gpu.example.com/v1/") * 20,
        *("http://[fd00::1]:8000", "os.environ/A_BASE") * 9,
        *("http://x:99999", "os.environ/1", "ftp://x", "http://u:p@x", "http://x/a?b"),
        *("", "http://"),
    ]
)

KEYS: Final = st.sampled_from([None, "none", "os.environ/KEY_A", "sk-1", "os.environ/a-b"])
NUMBERS: Final = st.sampled_from([*(1, 2.5, 1e9, "3") * 9, None, 0, -1, "x", True])
PARAMS: Final = st.fixed_dictionaries(
    {"model": NAMES.map(lambda name: f"hosted_vllm/{name}"), "api_base": URLS},
    optional={"api_key": KEYS}
    | dict.fromkeys(("weight", "max_parallel_requests", "temperature", "rpm"), NUMBERS),
)
ENTRY: Final = st.fixed_dictionaries({"model_name": NAMES, "litellm_params": PARAMS})
LISTED: Final = st.lists(
    st.dictionaries(NAMES, st.lists(NAMES, max_size=6), max_size=2), max_size=3
)
ROUTER: Final = {
    "fallbacks": LISTED,
    "context_window_fallbacks": LISTED,
    "model_group_alias": st.dictionaries(NAMES, NAMES, max_size=3),
    "timeout": NUMBERS,
    "routing_strategy": st.sampled_from(["least-busy", "simple-shuffle", "x"]),
}
LITELLM: Final = st.fixed_dictionaries(
    {"model_list": st.lists(ENTRY, max_size=6)},
    optional={
        "router_settings": st.fixed_dictionaries({}, optional=ROUTER),
        "litellm_settings": st.dictionaries(NAMES, NUMBERS, max_size=2),
        "general_settings": st.fixed_dictionaries({}, optional={"master_key": KEYS}),
    },
)
WORDS: Final = st.sampled_from(
    [
        *("listen 80;", "listen unix:/x;", "listen [::]:80 ssl;", "listen x y;", "listen;"),
        *("server 10.0.0.1;", "server a:1 weight=0;", "server b weight=9999 backup;", "server;"),
        *("server {", "location / {", "location = /a {", "location /a*b {", "location {", "}"),
        *("upstream u {", "upstream {", "http {", "events { worker_connections 0; }"),
        *("proxy_pass http://u;", "proxy_pass https://a:1/x/;", "proxy_pass http://1.2.3.4;"),
        *("proxy_pass;", "hash $http_x;", "hash;", "random two;", "client_max_body_size 0;"),
        *("client_max_body_size 9g;", "proxy_read_timeout 0;", "send_timeout x;", "ssl on;"),
        *("ssl_certificate tls.crt;", "ssl_certificate_key tls.key;", "foo 'a b' \"c\";"),
        'proxy_set_header Authorization "Bearer x";',
    ]
)
ASKED: Final = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def is_valid_or_told(kind: str, text: str, folder: Path) -> None:
    told: tuple[Issue, ...] = ()
    try:
        carried(kind, text, folder)
    except ConfigError as refused:
        told = refused.issues
    assert not [each for each in told if not str(each).startswith("theirs:")]


@ASKED
@given(tree=LITELLM)
def test_litellm(tree: dict[str, Any], tmp_path: Path) -> None:
    is_valid_or_told("litellm", yaml.safe_dump(tree, sort_keys=False), tmp_path)


@ASKED
@given(words=st.lists(WORDS, max_size=12))
def test_nginx_of_any_directives(words: list[str], tmp_path: Path) -> None:
    text = " ".join(words)
    is_valid_or_told("nginx", text + "}" * (text.count("{") - text.count("}")), tmp_path)


LINES: Final = WORDS.filter(lambda word: not word.endswith(("{", "}")))
LOCATIONS: Final = st.builds(
    "location {} {{ {} proxy_pass http://u; }}".format,
    *(st.sampled_from(["/", "= /a", "/a*b", "~ x", "/v1/"]), LINES),
)


@ASKED
@given(
    upstream=st.lists(LINES, max_size=6),
    server=st.lists(LINES, max_size=6),
    locations=st.lists(LOCATIONS),
)
def test_nginx(
    upstream: list[str], server: list[str], locations: list[str], tmp_path: Path
) -> None:
    text = f"upstream u {{ {' '.join(upstream)} }} server {{ {' '.join([*server, *locations])} }}"
    is_valid_or_told("nginx", text, tmp_path)


@ASKED
@given(text=st.text())
def test_any_text(text: str, tmp_path: Path) -> None:
    is_valid_or_told("litellm", text, tmp_path)
    is_valid_or_told("nginx", text, tmp_path)
