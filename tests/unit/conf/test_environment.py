"""Settings from environment variables: how they are read, merged and named in errors."""

import pytest

from penstock.conf.load import load
from tests.unit.conf.folder import FLEET, Folder, text_of


def test_the_environment_reads_yaml_except_for_text() -> None:
    environ = {
        "PENSTOCK_POOLS": '[{name: p, backends: [{name: a, url: "http://a"}]}]',
        "PENSTOCK_PATHS": '["GET /x"]',
        "PENSTOCK_LOG": "{level: error}",
        "PENSTOCK_LOG__ACCESS": "false",
        "PENSTOCK_HEALTH__DEEP__INTERVAL_S": "1e1",
        "PENSTOCK_TIMEOUTS__TOTAL_S": "",
        "PENSTOCK_ADMIN__TOKEN": "12345",
        "PENSTOCK_POOLS__0__NAME": "007",
    }
    settings = load(None, environ, {}).settings
    assert settings.paths == ("GET /x",)
    assert (settings.log.level, settings.log.access) == ("error", False)
    assert settings.health.deep.interval_s == 10
    assert settings.timeouts.total_s is None
    assert text_of(settings.admin.token) == "12345"
    assert settings.pools[0].name == "007"


def test_text_from_the_environment_is_taken_as_it_stands() -> None:
    environ = {"PENSTOCK_ADMIN__TOKEN": "#{a:${X}", "PENSTOCK_ADMIN__TOKEN_FILE": "null"}
    admin = load(None, environ, {"backends": ["http://a"]}).settings.admin
    assert text_of(admin.token) == "#{a:${X}"
    assert admin.token_file is None


def test_list_entries_by_index_change_and_append(folder: Folder) -> None:
    environ = {
        f"PENSTOCK_POOLS__0__BACKENDS__{index}__{key}": value.format(index)
        for index in range(1, 12)
        for key, value in (("NAME", "n{}"), ("URL", "http://h{}"))
    }
    environ["PENSTOCK_POOLS__0__BACKENDS__0__WEIGHT"] = "2"
    loaded = folder.load(FLEET, environ)
    backends = loaded.settings.pools[0].backends
    assert [backend.name for backend in backends] == ["a", *(f"n{i}" for i in range(1, 12))]
    assert (backends[0].weight, backends[0].url) == (2, "http://a:1")
    origins = loaded.origins
    assert origins["pools[0].backends[0].weight"] == "env PENSTOCK_POOLS__0__BACKENDS__0__WEIGHT"


def test_a_fleet_from_the_environment_alone() -> None:
    environ = {
        "PENSTOCK_POOLS__0__NAME": "p",
        "PENSTOCK_POOLS__0__BACKENDS__0__NAME": "a",
        "PENSTOCK_POOLS__0__BACKENDS__0__URL": "http://a:1",
    }
    assert load(None, environ, {}).settings.pools[0].backends[0].url == "http://a:1"


def test_mappings_merge_and_lists_replace(folder: Folder) -> None:
    text = FLEET + 'listen: {port: 1, host: "::"}\naffinity: {headers: [a, b]}\n'
    environ = {"PENSTOCK_LISTEN": "{port: 2}", "PENSTOCK_AFFINITY": "{headers: [c]}"}
    loaded = folder.load(text, environ)
    assert (loaded.settings.listen.port, loaded.settings.listen.host) == (2, "::")
    assert loaded.settings.affinity.headers == ("c",)
    assert loaded.origins["listen.host"] == "file:5"
    assert loaded.origins["affinity.headers"] == "env PENSTOCK_AFFINITY"


def test_a_list_of_the_environment_replaces_the_origins_below(folder: Folder) -> None:
    environ = {"PENSTOCK_POOLS": '[{name: p, backends: [{name: z, url: "http://z"}]}]'}
    loaded = folder.load(FLEET.replace("chat", "chat\n    policy: random"), environ)
    assert loaded.origins["pools[0].policy"] == "default"
    assert loaded.origins["pools[0].backends[0].url"] == "env PENSTOCK_POOLS"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PENSTOCK_LISTEN__PROT", "1", "listen.prot: unknown key; did you mean port?"),
        ("PENSTOCK_LISTEN", "{prot: 1}", "listen.prot: unknown key; did you mean port?"),
        ("PENSTOCK_PORT", "9000", "port: unknown key; allowed here: listen, admin, pools,"),
        ("PENSTOCK_LISTEN__PORT", "http", 'listen.port: must be a whole number, got "http"'),
        ("PENSTOCK_LISTEN__PORT", "", "listen.port: must be a whole number, got null"),
        ("PENSTOCK_LISTEN__0", "1", "listen: must be a mapping of keys, got a list"),
        ("PENSTOCK_POOLS__3__NAME", "x", "pools[3].name: the next index of pools is 1"),
        (
            "PENSTOCK_POOLS__1__NAME",
            "x",
            "pools[1].backends: must have at least 1 entry, unless `discover` finds some",
        ),
        ("PENSTOCK_PATHS", "[", "paths: not valid YAML: while parsing a flow node"),
        ("PENSTOCK_LOG", "{level: info, level: info}", "log.level: duplicate key"),
        ("PENSTOCK_", "1", "unknown key; allowed here"),
        ("PENSTOCK_\udcff", "1", "the name of the variable is not valid Unicode"),
        ("PENSTOCK_LISTEN__HOST", "\udcff", 'listen.host: must be valid Unicode, got "\\udcff"'),
        ("PENSTOCK_ADMIN__PORT", "tcp://a:1", 'admin.port: must be a whole number, got "tcp://a'),
        ("PENSTOCK_A__B__C", "1", "a: unknown key"),
        ("PENSTOCK_POOLS__99999999999", "1", "pools: must be a list, got a mapping"),
    ],
)
def test_errors_of_the_environment_name_the_variable(
    folder: Folder, name: str, value: str, expected: str
) -> None:
    (issue,) = folder.issues(FLEET, {name: value})
    start = f"environment {name}: ".replace("\udcff", "\\udcff")
    assert issue.startswith(start)
    assert expected in issue


def test_variables_that_are_no_settings_are_left_alone(folder: Folder) -> None:
    environ = {
        "PENSTOCK_CONFIG": "/etc/penstock.yaml",
        "PENSTOCK_SERVICE_HOST": "10.96.0.7",
        "PENSTOCK_SERVICE_PORT": "8080",
        "PENSTOCK_SERVICE_PORT_HTTP": "8080",
        "PENSTOCK_PORT": "tcp://10.96.0.7:8080",
        "PENSTOCK_PORT_8080_TCP": "tcp://10.96.0.7:8080",
        "PENSTOCK_PORT_8080_TCP_ADDR": "10.96.0.7",
        "PENSTOCK_ADMIN_SERVICE_HOST": "10.96.0.8",
        "PENSTOCK_ADMIN_PORT": "tcp://10.96.0.8:9321",
        "OTHER_LISTEN__PORT": "x",
    }
    origins = folder.load(FLEET, environ).origins
    assert not [origin for origin in origins.values() if origin.startswith("env")]
