"""Warnings: what a valid configuration says and probably does not mean, each with its line."""

import pytest

from penstock.conf.load import load
from penstock.proxy.commands.cli import main
from tests.unit.conf.folder import Folder

KEY = "0123456789abcdef0123456789abcdef"


LOCAL = "listen: {host: 127.0.0.1}\n"


def fleet(*backends: str, pool: str = "") -> str:
    lines = "".join(f"      - {{name: b{i}, url: {url}}}\n" for i, url in enumerate(backends))
    return f"pools:\n  - name: p\n    {pool}\n    backends:\n{lines}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            fleet("http://a:1") + "listen: {port: 9000}\nadmin:\n  port: 9000\n",
            "conf.yaml:8: admin.port: 9000 is also listen.port: only one of the two can listen",
        ),
        (
            fleet("http://127.0.0.1:8080"),
            "conf.yaml:5: pools[0].backends[0].url: is this proxy itself: listen.port is 8080",
        ),
        (
            fleet("http://localhost:9321"),
            "conf.yaml:5: pools[0].backends[0].url: is this proxy itself: admin.port is 9321",
        ),
        (
            fleet("http://300.1.2.3:8000"),
            "conf.yaml:5: pools[0].backends[0].url: 300.1.2.3 is neither an IP address nor a host"
            " name",
        ),
        (
            fleet("http://a") + "listen:\n  host: 10.0.1\n",
            "conf.yaml:7: listen.host: 10.0.1 is neither an IP address nor a host name",
        ),
        (
            fleet("http://a") + f"admin:\n  view_token: {KEY}\n",
            "conf.yaml:7: admin.view_token: does nothing without admin.token: everybody on this"
            " machine may read and write",
        ),
        (
            fleet("http://a") + f"admin:\n  token: {KEY}\n  view_token: {KEY}\n",
            "conf.yaml:8: admin.view_token: is the admin token itself: who has it may change"
            " everything",
        ),
        (
            fleet("http://a", pool="policy: session") + "affinity:\n  strict: true\n",
            "conf.yaml:7: affinity.strict: does nothing: no pool has the policy token_cost",
        ),
        (
            fleet("http://a", pool="admission: false") + "admission:\n  hold_for_backend_s: 5\n",
            "conf.yaml:7: admission.hold_for_backend_s: does nothing: no pool has"
            " `admission: true`",
        ),
        (
            fleet("http://a") + "listen: {trusted_proxies: [10.0.0.0/8, 0.0.0.0/0]}\n",
            "conf.yaml:6: listen.trusted_proxies[1]: trusts X-Forwarded-For from anyone: list"
            " only your own proxies",
        ),
        (
            fleet("http://a") + "health:\n  timeout_s: 3\n",
            "conf.yaml:7: health.timeout_s: 3 s is above interval_s (2 s): the next probe is due"
            " before this one has failed",
        ),
        (
            fleet("http://a") + "health: {deep: {interval_s: 3}}\n",
            "conf.yaml:6: health.deep.timeout_s: 4 s is above interval_s (3 s): the next probe is"
            " due before this one has failed",
        ),
        (
            fleet("http://a", "http://A:80/"),
            "conf.yaml:6: pools[0].backends[1].url: is the same server as pools[0].backends[0]:"
            " list it once, or its load counts twice",
        ),
        (
            fleet("http://a", pool="models: [x, y, x]"),
            "conf.yaml:3: pools[0].models[2]: x is in this list twice",
        ),
        (
            fleet("http://a", pool="tls: {ca_file: ca}"),
            "conf.yaml:3: pools[0].tls.ca_file: does nothing: no backend of this pool is https",
        ),
        (
            fleet("https://a", "http://b", pool="tls: {ca_file: ca}"),
            "conf.yaml:3: pools[0].tls.ca_file: does nothing for b1, whose url is http",
        ),
        (
            fleet("http://a", pool="api_key: hunter2") + LOCAL,
            "conf.yaml:3: pools[0].api_key: is a key of fewer than 16 characters, which can be"
            " guessed: `openssl rand -hex 32` makes a good one",
        ),
        (
            fleet("http://a", pool="api_key: sk-0123456789abcdef"),
            "conf.yaml:1: listen.host: lets anybody who reaches it use the key of pool p: list"
            " tenants",
        ),
        (
            fleet("http://a")
            + "tenants:\n  - name: t\n    keys: [{key: sk-0123456789abcdef}]\n"
            + "    limits: {tokens_per_day: 5}\n",
            "conf.yaml:9: tenants[0].limits.tokens_per_day: is full again after each restart: set"
            " state.dir to remember it",
        ),
        (
            fleet("http://a") + "tenants:\n  - {name: t, keys: [{key: hunter2}]}\n",
            "conf.yaml:7: tenants[0].keys[0].key: is a key of fewer than 16 characters, which can"
            " be guessed: `openssl rand -hex 32` makes a good one",
        ),
    ],
)
def test_what_is_doubted(text: str, expected: str, folder: Folder) -> None:
    assert folder.warnings(text) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        fleet("http://a:1", "http://a:2", "https://a:1.0.0.1".replace(":1.0.0.1", "")),
        fleet("http://10.0.0.1", "http://[fd00::1]:80"),
        fleet("http://a", pool='api_key: "${KEY}"') + LOCAL,
        fleet("http://a", pool='api_key: "${KEY}"\n    forward_authorization: none'),
        # One server with two adapters, each a model of its own.
        "pools:\n  - {name: p, models: [x], backends: [{name: a, url: http://a}]}\n"
        "  - {name: q, models: [y], backends: [{name: b, url: http://a}]}\n",
        fleet("http://a")
        + "listen: {host: 10.0.0.1, port: 1}\nadmin: {host: 127.0.0.1, port: 1}\n",
        fleet("http://a") + "listen: {port: 0}\nadmin: {port: 0}\n",
        fleet("http://10.0.0.1:8080"),
        fleet("http://1a.example", "http://300.example"),
    ],
)
def test_what_may_be_meant_is_not_doubted(text: str, folder: Folder) -> None:
    assert (
        folder.warnings(
            text.replace("http://[", '"http://[').replace(":80}", ':80"}'), {"KEY": KEY}
        )
        == []
    )


def test_a_list_of_backends_that_is_not_there_yet_is_told(folder: Folder) -> None:
    text = "pools: [{name: a, discover: {file: found.yaml}}]\n" + LOCAL
    assert folder.warnings(text) == [
        'conf.yaml:1: pools[0].discover.file: "found.yaml" cannot be read yet:'
        " No such file or directory"
    ]
    (folder.path / "found.yaml").write_text("[]")
    assert not folder.warnings(text)


@pytest.mark.parametrize(
    ("more", "doubted"),
    [
        ("", True),
        ("models: [m]", False),
        ("api_key: sk-0123456789abcdef", False),
    ],
)
def test_models_that_nobody_can_ask_for_must_be_named(
    more: str, doubted: bool, folder: Folder
) -> None:
    pool = ", ".join(["forward_authorization: client", more]).rstrip(", ")
    told = folder.warnings(fleet("http://a", pool=pool.replace(", ", "\n    ")) + LOCAL)
    assert bool(told) is doubted
    assert all("name them in pools[].models" in each for each in told)


def test_a_server_in_two_pools_of_the_same_models_counts_twice(folder: Folder) -> None:
    text = (
        "pools:\n  - {name: p, backends: [{name: a, url: http://a}]}\n"
        "  - {name: q, models: [y], backends: [{name: b, url: http://a}]}\n"
    )
    (told,) = folder.warnings(text)
    assert told.startswith("conf.yaml:3: pools[1].backends[0].url: is the same server as pools[0]")
    assert not folder.warnings(text.replace("http://a}]}\n  -", "http://a/below}]}\n  -"))


@pytest.mark.parametrize(("mode", "doubted"), [(0o600, False), (0o640, False), (0o644, True)])
def test_secrets_that_everybody_may_read(mode: int, doubted: bool, folder: Folder) -> None:
    for name in ("token", "key", "tenant", "tls.key"):
        (folder.path / name).write_text(KEY + name.replace(".", ""))
        (folder.path / name).chmod(mode)
    (folder.path / "tls.crt").write_text("public")
    text = (
        fleet("http://a", pool="api_key_file: key")
        + "admin: {token_file: token}\ntenants: [{name: t, keys: [{key_file: tenant}]}]\n"
        "listen: {tls: {cert_file: tls.crt, key_file: tls.key}}\n"
    )
    says = "everybody on this machine may read it (mode 0644); chmod 600"
    assert (
        folder.warnings(text)
        == [
            f'conf.yaml:3: pools[0].api_key_file: "key": {says}',
            f'conf.yaml:6: admin.token_file: "token": {says}',
            f'conf.yaml:7: tenants[0].keys[0].key_file: "tenant": {says}',
            f'conf.yaml:8: listen.tls.key_file: "tls.key": {says}',
        ]
        * doubted
    )


def test_secrets_in_a_configuration_that_everybody_may_read(folder: Folder) -> None:
    (folder.path / "token").write_text(KEY[::-1])
    (folder.path / "token").chmod(0o600)
    text = fleet("http://a", pool='api_key: "${KEY}"') + (
        "admin: {token_file: token}\n"
        "tenants:\n  - name: t\n    keys:\n"
        f'      - {{key: "{KEY[::2] * 2}"}}\n      - {{key_sha256: "{"a" * 64}"}}\n'
    )
    assert folder.warnings(text, {"KEY": KEY}) == []
    folder.file.chmod(0o644)
    (told,) = load(folder.file, {"KEY": KEY}, {}).warnings
    assert folder.line(told) == (
        "conf.yaml:10: tenants[0].keys[0].key: stands in a file that everybody on this machine may"
        " read (mode 0644): write ${VAR}, or give key_file"
    )


def test_no_warning_shows_a_key(folder: Folder) -> None:
    (folder.path / "token").write_text("hunter2")
    text = fleet("http://a", pool="api_key: hunter3") + "admin: {token_file: token}\n"
    told = "\n".join(folder.warnings(text))
    assert told.count("fewer than") == 2
    assert "hunter" not in told


def test_a_warning_from_outside_the_file_names_where_it_is_from() -> None:
    environ = {"PENSTOCK_HEALTH__TIMEOUT_S": "3s"}
    (told,) = load(None, environ, {"backends": ["http://a"]}).warnings
    assert str(told).startswith("environment PENSTOCK_HEALTH__TIMEOUT_S: health.timeout_s: 3 s is")


RESERVE = (
    "admission.reserve: does nothing any more: a request leaves room in each KV cache for what"
    " higher classes asked for in the last second"
)
WINDOW = (
    "admission.window_s: does nothing any more: the window is 0.1 s or four steps of the engine,"
    " and the round trip"
)


def test_keys_that_earlier_versions_had_are_taken_with_a_warning(folder: Folder) -> None:
    keys = "admission:\n  default_class: batch\n  window_s: null\n  reserve: lots\n"
    text = fleet("http://a") + keys
    assert folder.warnings(text) == [f"conf.yaml:8: {WINDOW}", f"conf.yaml:9: {RESERVE}"]
    loaded = folder.load(text)
    assert loaded.settings.admission.default_class == "batch"
    assert "admission.reserve" not in loaded.origins


def test_so_they_are_in_the_environment() -> None:
    environ = {"PENSTOCK_ADMISSION__WINDOW_S": "2s", "PENSTOCK_ADMISSION__RESERVE": "0.2"}
    told = load(None, environ, {"backends": ["http://a"]}).warnings
    assert [str(each) for each in told] == [
        f"environment PENSTOCK_ADMISSION__RESERVE: {RESERVE}",
        f"environment PENSTOCK_ADMISSION__WINDOW_S: {WINDOW}",
    ]


# -- penstock check


def test_check_warns_and_strict_refuses(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder.write(fleet("http://300.1.2.3"))
    says = "300.1.2.3 is neither an IP address nor a host name"
    assert main(["check", str(path)]) == 0
    told = capsys.readouterr()
    assert told.out == f"{path}: ok\n"
    assert told.err == f"{path}:5: pools[0].backends[0].url: warning: {says}\n"
    assert main(["check", "--strict", str(path)]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"{path}:5: pools[0].backends[0].url: {says}\n")


def test_check_reads_several_files(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("a", "x"), ("b", fleet("http://a")), ("c", fleet("ftp://a"))):
        (folder.path / name).write_text(text)
    paths = [str(folder.path / name) for name in ("a", "missing", "b", "c")]
    assert main(["check", *paths]) == 2
    told = capsys.readouterr()
    assert told.out == f"{paths[2]}: ok\n"
    assert [line.partition(" ")[0] for line in told.err.splitlines()] == [
        f"{paths[0]}:1:",
        f"{paths[1]}:",
        f"{paths[3]}:5:",
    ]
    assert main(["check", paths[2], paths[2]]) == 0


def test_no_error_hides_another(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong type, ranges, what ties two keys together, and files that are missing."""
    path = folder.write(
        "listen: {tls: {cert_file: no.crt, key_file: no.key}}\n"
        "admin: {port: x, host: 0.0.0.0}\n"
        "pools:\n"
        "  - name: p\n"
        "    api_key_file: no.secret\n"
        "    tls: {ca_file: no.ca}\n"
        "    backends: [{name: a, url: https://a, weight: -1}]\n"
        "limits: {body_bytes: 4096, bodies_bytes: 2048, connections: x}\n"
        "tokens: {estimator: tiktoken, encoding: x}\n"
        "tenants: [{name: 1, keys: [{}]}]\n"
        "health: {interval_s: 0}\n",
    )
    assert main(["check", str(path)]) == 2
    told = [line.removeprefix(f"{path}:") for line in capsys.readouterr().err.splitlines()]
    assert [": ".join(line.split(": ")[:2]) for line in told] == [
        "1: listen.tls.cert_file",
        "1: listen.tls.key_file",
        "2: admin.port",
        "2: admin.token",
        "5: pools[0].api_key_file",
        "6: pools[0].tls.ca_file",
        "7: pools[0].backends[0].weight",
        "8: limits.bodies_bytes",
        "8: limits.connections",
        "9: tokens.file",
        "9: tokens.encoding",
        "10: tenants[0].name",
        "10: tenants[0].keys[0]",
        "11: health.interval_s",
    ]


def test_missing_files_of_every_kind_are_told_in_one_run(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder.write(
        "listen: {tls: {cert_file: no.crt, key_file: no.key}}\n"
        "tokens: {estimator: tiktoken, file: no.tiktoken}\n"
        + fleet("https://a", pool="tls: {ca_file: no.ca}")
    )
    assert main(["check", str(path)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 4
    assert all("cannot be read: No such file or directory" in line for line in told)
