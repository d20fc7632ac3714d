"""Each key has its bounds and shape, and the message says which."""

from typing import Any

import pytest
from pydantic import ValidationError

from penstock.conf.issues import ConfigError, shown
from penstock.conf.kinds import POLICY_NAMES
from penstock.conf.load import load
from penstock.conf.pools import PoolSettings
from penstock.conf.settings import Settings
from tests.unit.conf.folder import text_of

BACKEND = {"name": "b", "url": "http://h:1"}


def configured(**keys: object) -> dict[str, Any]:
    return {"pools": [{"name": "p", "backends": [BACKEND]}], **keys}


def refusal(path: str, value: object) -> str:
    """The one issue when `value` stands at `path` (given as a flag)."""
    flags = {"pools": configured()["pools"], path: value}
    with pytest.raises(ConfigError) as refused:
        load(None, {}, flags)
    (issue,) = refused.value.issues
    return str(issue).partition(f": {path}: ")[2] or str(issue)


def pool_refusal(**keys: object) -> str:
    with pytest.raises(ConfigError) as refused:
        load(None, {}, {"pools": [{"name": "p", "backends": [BACKEND], **keys}]})
    (issue,) = refused.value.issues
    return str(issue).removeprefix("flag --pools: ")


def backend_refusal(**keys: object) -> str:
    return pool_refusal(backends=[BACKEND | keys]).removeprefix("pools[0].backends[0].")


def test_defaults() -> None:
    settings = Settings.model_validate(configured())
    assert (settings.listen.host, settings.listen.port) == ("0.0.0.0", 8080)
    assert (settings.admin.host, settings.admin.port) == ("127.0.0.1", 9321)
    assert settings.pools[0].policy == "token_cost"
    assert settings.pools[0].backends[0].weight == 1
    assert settings.health.deep.interval_s == 10
    assert settings.timeouts.total_s is None
    assert settings.affinity.body_fields == ("prompt_cache_key", "user")
    assert settings.log.access is True


def test_settings_are_frozen() -> None:
    settings = Settings.model_validate(configured())
    with pytest.raises(ValidationError, match="frozen"):
        settings.listen.port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("listen.port", 65536, "must be at most 65535, got 65536"),
        ("listen.port", -1, "must be at least 0, got -1"),
        ("listen.port", 80.5, "must be a whole number, got 80.5"),
        ("listen.port", True, "must be a whole number, got true"),
        ("listen.port", "8080.", "must be a whole number, got 8080.0"),
        ("listen.reuse_port", 1, "must be true or false, got 1"),
        ("listen.reuse_port", "yes", 'must be true or false, got "yes"'),
        ("listen.host", 1, "must be text, got 1; put it in quotes"),
        ("listen.host", "", "must be text, got null"),
        ("listen.cors_origins", ["https://a/b"], None),
        ("listen", [], "must be a mapping of keys, got a list"),
        ("health.interval_s", 0, "must be at least 0.001, got 0"),
        ("health.interval_s", 86401, "must be at most 86400, got 86401"),
        ("health.interval_s", float("nan"), "must be a finite number, got nan"),
        ("health.interval_s", float("inf"), "must be a finite number, got inf"),
        ("health.interval_s", 10**60, "must be at most 86400, got 1000000000"),
        ("health.fall", 0, "must be at least 1, got 0"),
        ("health.deep", 3, "must be a mapping of keys, got 3"),
        ("drain.grace_s", -1, "must be at least 0, got -1"),
        ("timeouts.total_s", 0, "must be at least 0.001, got 0"),
        ("limits.head_bytes", 10, "must be at least 1024, got 10"),
        ("limits.connections", 0, "must be at least 1, got 0"),
        ("admin.token", 12345, "must be text, got ***; put it in quotes"),
        ("log.level", "warn", "must be one of 'debug', 'info', 'warning' or 'error', got"),
        ("paths", "[GET]", None),
        ("paths", "GET /x", 'must be a list, got "GET /x"; put it in [ ]'),
    ],
)
def test_bounds_and_kinds(path: str, value: object, expected: str | None) -> None:
    message = refusal(path, value)
    assert message.startswith(expected) if expected else f"{path}[0]: must be" in message


def test_a_wrong_word_names_the_one_that_was_meant() -> None:
    assert refusal("log.level", "warn").endswith("did you mean warning?")
    assert "did you mean least_tokens?" in pool_refusal(policy="least_token")


def test_zero_is_a_value_where_it_means_none() -> None:
    flags = {"backends": ["http://h:1"], "drain.grace_s": 0, "listen.port": 0}
    settings = load(None, {}, flags | {"timeouts.first_byte_s_per_1k_tokens": 0}).settings
    assert (settings.drain.grace_s, settings.listen.port) == (0, 0)


def test_one_body_must_fit_into_all_bodies() -> None:
    assert refusal("limits.bodies_bytes", 2048).endswith(
        "must be at least body_bytes (33554432), or such a body could never be held, got 2048"
    )


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_policies_that_exist(policy: str) -> None:
    flags = {"backends": ["http://h:1"], "policy": policy}
    assert load(None, {}, flags).settings.pools[0].policy == policy


@pytest.mark.parametrize(
    ("url", "stored"),
    [
        ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
        ("https://gpu_0.example.com/", "https://gpu_0.example.com"),
        ("HTTP://gpu-0", "http://gpu-0"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("http://ingress/serve/llama-8b", "http://ingress/serve/llama-8b"),
        ("http://ingress/v1beta/", "http://ingress/v1beta"),
    ],
)
def test_backend_urls(url: str, stored: str) -> None:
    assert load(None, {}, {"backends": [url]}).settings.pools[0].backends[0].url == stored


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:1/v1", "must not end in '/v1': drop that, requests bring their own"),
        ("http://h:1/a/v1/", "must not end in '/v1/': drop that"),
        ("http://h:1/a/v1/chat/completions", "must not end in '/v1/chat/completions'"),
        ("http://h:1//a", "must be empty or a path such as /llm"),
        ("http://h:1/a/../b", "must be empty or a path such as /llm"),
        ("http://h:1?", "must not hold a query"),
        ("http://h:1/#x", "must not hold a query or a fragment"),
        ("10.0.0.1:8000", "must begin with http:// or https://"),
        ("unix:/run/vllm.sock", "must begin with http:// or https://"),
        ("http://", "must have a host"),
        ("http://:80", "must have a host"),
        ("http://h:", "must have a host and may have a port"),
        ("http://h:0", "must have a host and may have a port"),
        ("http://h:99999", "is not a URL"),
        ("http://h:x", "is not a URL"),
        ("http://[::1", "is not a URL"),
        ("http://a'b", "must have a host"),
        ("http://a b", "must be a URL of visible ASCII"),
        ("http://h\n", "must be a URL of visible ASCII"),
        ("http://hé", "must be a URL of visible ASCII"),
        ("", "must be a URL of visible ASCII"),
        (8000, "must be text, got 8000; put it in quotes"),
    ],
)
def test_backend_urls_refused(url: object, expected: str) -> None:
    assert backend_refusal(url=url).startswith(f"url: {expected}")


def test_credentials_in_a_url_are_refused_and_not_shown() -> None:
    message = backend_refusal(url="http://user:hunter2@h:1")
    assert message.startswith("url: must not hold credentials: use api_key_file")
    assert "hunter2" not in message
    assert "hunter2" not in backend_refusal(url="http://h?key=hunter2")
    for password in ("hunter2/3", "2/hunter2", "2/3", "hunter2?3", "#hunter2", "a@hunter2"):
        message = backend_refusal(url=f"http://user:{password}@h:1")
        assert message.startswith("url: must not hold credentials: use api_key_file")
        assert password not in message
        assert "hunter2" not in message


def test_the_prefix_of_clients_is_a_path() -> None:
    settings = Settings.model_validate(configured(listen={"prefix": "/llm/"}))
    assert settings.listen.prefix == "/llm"
    for wrong in ("llm", "/v1", "/llm/v1", "/a//b", "/a?b"):
        assert refusal("listen.prefix", wrong).startswith("must ")


def test_networks_of_proxies() -> None:
    written = ["10.0.0.0/8", "192.0.2.7", "FD00::/8"]
    settings = Settings.model_validate(configured(listen={"trusted_proxies": written}))
    assert settings.listen.trusted_proxies == ("10.0.0.0/8", "192.0.2.7/32", "fd00::/8")
    with_bits = refusal("listen.trusted_proxies", ["10.0.0.1/8"])
    assert "did you mean 10.0.0.0/8?" in with_bits
    for wrong in ("ingress", "10.0.0.0/33", "10.0.0.0-10.0.0.9", ""):
        assert "must be an address or a network" in refusal("listen.trusted_proxies", [wrong])


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 64, "a/b", "é", "a\n"])
def test_names_refused(name: str) -> None:
    assert backend_refusal(name=name).startswith("name: must be 1 to 63 letters, digits")


@pytest.mark.parametrize("weight", [0, -1, 1001, "1", 1e-320, 0.0009])
def test_weights_refused(weight: object) -> None:
    assert backend_refusal(weight=weight).startswith("weight: must be")


def test_a_pool_needs_a_backend_and_the_settings_a_pool() -> None:
    assert (
        pool_refusal(backends=[])
        == "pools[0].backends: must have at least 1 entry, unless `discover` finds some"
    )
    with pytest.raises(ConfigError, match=r"^flag --pools: pools: must have at least 1 entry$"):
        load(None, {}, {"pools": []})


@pytest.mark.parametrize(
    "path",
    ["GET tokenizer_info", "PUT /x", "get /x", "GET  /x", "GET /a?b", "GET /a#b", "GET /a b",
     "GET /é", "/x", "GET /x\n"],
)  # fmt: skip
def test_proxied_paths_refused(path: str) -> None:
    message = refusal("paths", [path])
    assert "paths[0]: must be a method (GET or POST), one space and an exact path" in message


def test_proxied_paths() -> None:
    paths = ["GET /tokenizer_info", "POST /v1/systemone", "GET /v1/chat", "POST /cohere/v2/chat"]
    settings = Settings.model_validate(configured(paths=paths))
    assert settings.paths == tuple(paths)


@pytest.mark.parametrize(
    "path",
    ["POST /v1/score", "GET /", "GET /v1/chat/completions", "GET /v1/models/a/b",
     "POST /v1/responses/x/cancel", "POST /v1/chat/complet%69ons", "POST //v1/chat/completions",
     "POST /v1/chat/completions/", "POST /x/../v1/./completions", "POST /v1%2Fmessages"],
)  # fmt: skip
def test_a_path_that_is_served_cannot_be_added(path: str) -> None:
    """It would be forwarded unread, past the limits of tenants."""
    assert "paths[0]: is a path that is served anyway: remove it" in refusal("paths", [path])


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "::1", "fe80::1%eth0", "localhost", "a-b.c"])
def test_hosts(host: str) -> None:
    assert Settings.model_validate(configured(listen={"host": host})).listen.host == host


@pytest.mark.parametrize("host", ["http://h", "h:80", "[::1]", "a b", "h/", "cafe:80"])
def test_hosts_refused(host: str) -> None:
    assert refusal("listen.host", host).startswith("must be an address or a host name such as")


def test_header_names_are_lower_case_and_tokens() -> None:
    settings = Settings.model_validate(configured(affinity={"headers": ["X-Session-ID"]}))
    assert settings.affinity.headers == ("x-session-id",)
    assert "must be the name of an HTTP header" in refusal("affinity.headers", ["a: b"])


def test_origins() -> None:
    origins = ["*", "https://chat.example.com", "tauri://localhost", "http://[::1]:3000"]
    settings = Settings.model_validate(configured(listen={"cors_origins": origins}))
    assert settings.listen.cors_origins == tuple(origins)
    assert "without a path" in refusal("listen.cors_origins", ["https://a/"])


def test_names_are_unique_however_the_settings_are_made() -> None:
    pool = PoolSettings.model_validate({"name": "p", "backends": [BACKEND]})
    with pytest.raises(ValidationError, match=r"pools\[1\].name: pool name 'p' is taken by"):
        Settings(pools=(pool, pool))
    other = pool.model_copy(update={"name": "q"})
    with pytest.raises(ValidationError, match=r"backend name 'b' is taken by pools\[0\]"):
        Settings(pools=(pool, other))


def test_a_secret_never_prints() -> None:
    pool = PoolSettings.model_validate({"name": "p", "backends": [BACKEND], "api_key": "sk-1"})
    assert text_of(pool.api_key) == "sk-1"
    for text in (repr(pool), str(pool), pool.model_dump_json()):
        assert "sk-1" not in text


@pytest.mark.parametrize("secret", ["", "a b", "a\nb", "é", "x" * 4097])
def test_a_secret_must_fit_into_a_header(secret: str) -> None:
    message = pool_refusal(api_key=secret)
    assert message.endswith(", got ***")
    assert secret not in message or not secret


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a" * 100, '"' + "a" * 57 + '..."'),
        ('a"b\n', '"a\\"b\\n"'),
        ("é", '"é"'),
        ("\udcff", '"\\udcff"'),
        (None, "null"),
        (False, "false"),
        ({"api_key": "sk"}, "a mapping"),
        (("sk",), "a list"),
        ("http://u:p@h/?k=v", '"http://***@h/?***"'),
        ("http://u:p/a?s@s@h", '"http://***@h"'),
        ("u:p/a@h:8000", '"u:***@h:8000"'),
        ("org/model@rev", '"org/model@rev"'),
    ],
)
def test_values_in_messages(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_secret_written_into_its_section_is_not_shown() -> None:
    assert refusal("admin", 'sk-"secret"') == "must be a mapping of keys, got ***"
