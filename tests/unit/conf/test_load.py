"""Layers, origins and errors: what wins, where it came from, and all that is wrong at once."""

from pathlib import Path

import pytest

from penstock.conf.issues import ConfigError
from penstock.conf.load import load
from tests.unit.conf.folder import FLEET, Folder

SECONDS = "must be a number of seconds, or a duration such as 500ms (ms, s, m, min, h, d)"


# -- precedence and origins


def test_flags_win_over_the_environment_over_the_file_over_defaults(folder: Folder) -> None:
    text = FLEET + "listen:\n  port: 1\nadmin: {port: 1}\ndrain: {grace_s: 1}\n"
    environ = {"PENSTOCK_LISTEN__PORT": "2", "PENSTOCK_ADMIN__PORT": "2"}
    loaded = folder.load(text, environ, {"listen.port": 3})
    settings = loaded.settings
    assert (settings.listen.port, settings.admin.port, settings.drain.grace_s) == (3, 2, 1)
    assert settings.drain.timeout_s == 300
    assert loaded.origins["listen.port"] == "flag --port"
    assert loaded.origins["admin.port"] == "env PENSTOCK_ADMIN__PORT"
    assert loaded.origins["drain.grace_s"] == "file:8"
    assert loaded.origins["drain.timeout_s"] == "default"
    assert loaded.origins["pools[0].backends[0].url"] == "file:4"
    assert loaded.origins["pools[0].policy"] == "default"


def test_every_value_has_an_origin(folder: Folder) -> None:
    origins = folder.load(FLEET).origins
    assert len(origins) == 102
    assert {"listen.cors_origins", "paths", "health.deep.fall", "pools[0].api_key"} <= set(origins)


def test_flags_are_named_as_people_typed_them() -> None:
    flags: dict[str, object] = {
        "backends": ["http://a:1", "http://b:2/"],
        "policy": "random",
        "listen.host": "::1",
        "admin.host": "::1",
        "listen.reuse_port": True,
        "log.level": "debug",
    }
    origins = load(None, {}, flags).origins
    assert origins["pools[0].backends[1].url"] == "flag --backend"
    assert origins["pools[0].policy"] == "flag --policy"
    assert origins["listen.host"] == "flag --host"
    assert origins["admin.host"] == "flag --admin-host"
    assert origins["listen.reuse_port"] == "flag --reuse-port"
    assert origins["log.level"] == "flag --log-level"


def test_a_flag_that_is_none_was_not_given(folder: Folder) -> None:
    loaded = folder.load(FLEET, {}, {"listen.port": None, "backends": [], "policy": None})
    assert loaded.settings.listen.port == 8080
    assert loaded.settings.pools[0].name == "chat"


def test_backend_flags_replace_all_pools(folder: Folder) -> None:
    environ = {"PENSTOCK_POOLS__0__POLICY": "random"}
    (pool,) = folder.load(FLEET, environ, {"backends": ["http://x:1", "http://y:1"]}).settings.pools
    assert (pool.name, pool.policy) == ("default", "token_cost")
    assert [(each.name, each.url) for each in pool.backends] == [
        ("b0", "http://x:1"),
        ("b1", "http://y:1"),
    ]


def test_the_policy_flag_is_for_every_pool(folder: Folder) -> None:
    text = FLEET + '  - {name: q, policy: random, backends: [{name: z, url: "http://z"}]}\n'
    pools = folder.load(text, {}, {"policy": "round_robin"}).settings.pools
    assert [pool.policy for pool in pools] == ["round_robin", "round_robin"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "pools: is required"),
        ("pools: 1", "pools: must be a list, got 1"),
        ("pools: [x]", "pools[0]: must be a mapping of keys, got ***"),
    ],
)
def test_the_policy_flag_needs_pools(folder: Folder, text: str, expected: str) -> None:
    (issue,) = folder.issues(text, {}, {"policy": "random"})
    assert issue.startswith(f"conf.yaml:1: {expected}")


# -- the file


def test_references_in_the_file(folder: Folder) -> None:
    text = FLEET + "listen:\n  port: ${PORT}\n  host: ${HOST:-::1}\npaths: ['GET /$${x}']\n"
    loaded = folder.load(text, {"PORT": "9000"})
    assert (loaded.settings.listen.port, loaded.settings.listen.host) == (9000, "::1")
    assert loaded.settings.paths == ("GET /${x}",)
    assert loaded.origins["listen.port"] == "file:6"


def test_all_errors_at_once_in_the_order_of_the_file(folder: Folder) -> None:
    text = """\
listen: {prot: 1}
pools:
  - name: chat
    policy: least_token
    backends:
      - name: a
        url: http://a:1/v1
      - name: a
        url: ${NOWHERE}
      - url: http://c
  - name: chat
health:
  deep: {fall: many}
health: 1
limits: {body_bytes: 2048, bodies_bytes: 1024}
"""
    issues = folder.issues(text, {"PENSTOCK_ADMIN__PORT": "-1"}, {"log.level": "loud"})
    starts = [
        "conf.yaml:1: listen.prot: unknown key; did you mean port?",
        "conf.yaml:4: pools[0].policy: must be one of 'round_robin', 'random', 'weighted_random",
        "conf.yaml:7: pools[0].backends[0].url: must not end in '/v1': drop that,"
        " requests bring their own",
        "conf.yaml:8: pools[0].backends[1].name: backend name 'a' is taken by pools[0].backends[0]",
        "conf.yaml:9: pools[0].backends[1].url: environment variable NOWHERE is not set",
        "conf.yaml:10: pools[0].backends[2].name: is required",
        "conf.yaml:11: pools[1].backends: must have at least 1 entry, unless `discover` finds some",
        "conf.yaml:11: pools[1].name: pool name 'chat' is taken by pools[0]",
        'conf.yaml:13: health.deep.fall: must be a whole number, got "many"',
        "conf.yaml:14: health: duplicate key, given on line 12 and again on line 14",
        "conf.yaml:15: limits.bodies_bytes: must be at least body_bytes (2048), or such a body",
        "environment PENSTOCK_ADMIN__PORT: admin.port: must be at least 0, got -1",
        "flag --log-level: log.level: must be one of 'debug', 'info',",
    ]
    assert [issue[: len(start)] for issue, start in zip(issues, starts, strict=False)] == starts
    assert len(issues) == len(starts)
    assert issues[5] == starts[5]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            FLEET
            + "listen: {port: !!int x}\npaths: !x [1]\nlog:\n  level: ${NOPE}\ndrain: !x {}\n",
            [
                "5: listen.port: is not the number that its tag says",
                "6: paths: has a tag that is not supported",
                "8: log.level: environment variable NOPE is not set and has no default"
                " (${NOPE:-default} gives one)",
                "9: drain: has a tag that is not supported",
            ],
        ),
        (
            FLEET + '      - {name: a, url: "http://b:1"}\n',
            [
                "5: pools[0].backends[1].name: backend name 'a' is taken by"
                " pools[0].backends[0]; names must be unique"
            ],
        ),
        (
            "pools:\n  - backends: [{url: http://a}, {url: http://b}]\n"
            + 2 * "  - {name: 1, backends: 1}\n",
            [
                "2: pools[0].name: is required",
                "2: pools[0].backends[0].name: is required",
                "2: pools[0].backends[1].name: is required",
                "3: pools[1].name: must be text, got 1; put it in quotes",
                "3: pools[1].backends: must be a list, got 1",
                "4: pools[2].name: must be text, got 1; put it in quotes",
                "4: pools[2].backends: must be a list, got 1",
            ],
        ),
        (
            FLEET + "tenants: [{name: t, keys: [sk-1]}]",
            [
                "5: tenants[0].keys[0]: must be a mapping of keys, got ***; "
                "its keys are key, key_file, key_sha256"
            ],
        ),
        (
            FLEET + "health:\n",
            ["5: health: must be a mapping of keys, got null; put keys under it or remove it"],
        ),
    ],
    ids=["unreadable", "a name twice", "names that are none", "no mapping", "empty section"],
)
def test_each_fault_is_told_once(folder: Folder, text: str, told: list[str]) -> None:
    assert folder.issues(text) == [f"conf.yaml:{each}" for each in told]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("health: {fall: '1'}", 'health.fall: must be a whole number, got "1"; remove the quotes'),
        ("drain: {grace_s: '.5'}", f'drain.grace_s: {SECONDS}, got ".5"; remove the quotes'),
        ("listen: {port: http}", 'listen.port: must be a whole number, got "http"'),
        ("listen: {port: [1]}", "listen.port: must be a whole number, got a list"),
        ("listen: {host: 127}", "listen.host: must be text, got 127; put it in quotes"),
        ("paths: GET /x", 'paths: must be a list, got "GET /x"; put it in [ ]'),
        ("paths: 1", "paths: must be a list, got 1"),
        ("health: 1", "health: must be a mapping of keys, got 1"),
        ("log: {access: 1}", "log.access: must be true or false, got 1"),
    ],
)  # fmt: skip
def test_hints_are_given_only_where_they_help(folder: Folder, text: str, problem: str) -> None:
    assert folder.issues(FLEET + text) == [f"conf.yaml:5: {problem}"]


def test_a_missing_fleet_says_what_to_do(folder: Folder) -> None:
    hint = "pools: is required: list them in the file, or start with --backend URL"
    assert folder.issues("# nothing\n") == [f"conf.yaml:1: {hint}"]
    assert folder.issues("\n\nlog: {}\n") == [f"conf.yaml:3: {hint}"]
    with pytest.raises(ConfigError, match=f"^{hint}$"):
        load(None, {}, {})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"- a\n", "conf.yaml:1: the file must be a mapping of keys, got a list"),
        (b"\n8080", "conf.yaml:2: the file must be a mapping of keys, got 8080"),
        (b"a: 1\nb: \xff\n", "conf.yaml:2: not UTF-8: byte 0xff"),
        (b"a: 1\nb: [", "conf.yaml:2: not valid YAML: while parsing a flow node"),
        (b"#" * 1_048_577, "conf.yaml: is larger than 1,048,576 bytes"),
    ],
)
def test_files_that_cannot_be_read_at_all(folder: Folder, content: bytes, expected: str) -> None:
    folder.file.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        load(folder.file, {}, {})
    (issue,) = refused.value.issues
    assert folder.line(issue).startswith(expected)


def test_a_byte_order_mark_is_no_error(folder: Folder) -> None:
    folder.file.write_bytes(b"\xef\xbb\xbf" + FLEET.encode())
    assert load(folder.file, {}, {}).settings.pools[0].name == "chat"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (Path("nowhere.yaml"), "nowhere.yaml: cannot be read: No such file or directory"),
        (Path("/"), "/: cannot be read: Is a directory"),
        (Path("a\0b"), "a\\x00b: is not the name of a file"),
        (Path("a\nb"), "a\\nb: cannot be read: No such file or directory"),
    ],
)
def test_paths_that_are_no_file(path: Path, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(path, {}, {})
    assert str(refused.value) == expected


def test_an_issue_is_one_bounded_printable_line(folder: Folder) -> None:
    (issue,) = folder.issues(FLEET + f'"a\\n\\e{"x" * 1000}": 1\n')
    assert issue.isprintable()
    assert len(issue) < 300


def test_backends_that_are_no_list() -> None:
    with pytest.raises(ConfigError, match=r"^flag --backend: pools: must be a list, got"):
        load(None, {}, {"backends": "http://a"})


def test_flags_that_are_text_are_read_like_the_environment() -> None:
    settings = load(None, {}, {"backends": ["http://a"], "listen.port": "9000"}).settings
    assert settings.listen.port == 9000
