"""The effective configuration, the schema and the examples agree with the settings."""

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from penstock import conf
from penstock.conf.document import read
from penstock.conf.load import load
from penstock.conf.pools import BackendSettings, PoolSettings
from penstock.conf.settings import Settings
from penstock.conf.show import render, schema
from tests.unit.conf.folder import every_key

EXAMPLES = Path(conf.__file__).parent / "examples"
SCHEMA_LINE = "# yaml-language-server: $schema=./penstock.schema.json\n"


# -- show


def test_each_line_has_its_origin(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "pools:\n  - name: chat\n    backends:\n      - {name: a, url: http://a}\n"
    )
    text = render(load(tmp_path / "c.yaml", {"PENSTOCK_LISTEN__PORT": "1"}, {"policy": "random"}))
    assert text.startswith(
        'listen:\n  host: "0.0.0.0"  # default\n  port: 1  # env PENSTOCK_LISTEN__PORT\n'
    )
    assert "  interval_s: 2  # default\n" in text
    assert '  - name: "chat"  # file:2\n    policy: "random"  # flag --policy\n' in text
    assert '      - name: "a"  # file:4\n        url: "http://a"  # file:4\n' in text


def test_secrets_are_masked(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-hunter2")
    environ = {
        "PENSTOCK_ADMIN__TOKEN": "hunter2",
        "PENSTOCK_POOLS": "[{name: p, backends: [{name: a, url: 'http://a'}]}]",
        "PENSTOCK_POOLS__0__API_KEY_FILE": str(tmp_path / "key"),
    }
    text = render(load(None, environ, {}))
    assert "hunter2" not in text
    assert '  token: "***"  # env PENSTOCK_ADMIN__TOKEN\n' in text
    assert '    api_key: "***"  # env PENSTOCK_POOLS__0__API_KEY_FILE\n' in text


def test_what_is_shown_can_be_loaded_again(tmp_path: Path) -> None:
    environ = {
        "PENSTOCK_POOLS": "[{name: '007', models: ['a$${b}', 'é\"\\', \"\\U0001f600\\u200b\"],"
        " backends: [{name: a, url: 'http://a', weight: 1.5}]}]",
        "PENSTOCK_PATHS": "['GET /a\"b', 'POST /c']",
        "PENSTOCK_TIMEOUTS__TOTAL_S": "0.25",
    }
    loaded = load(None, environ, {})
    text = render(loaded)
    assert all(line.isprintable() for line in text.splitlines())
    (tmp_path / "c.yaml").write_text(text, encoding="utf-8")
    assert load(tmp_path / "c.yaml", {}, {}).settings == loaded.settings


# -- schema


def test_the_committed_schema_is_the_generated_one() -> None:
    text = (EXAMPLES / "penstock.schema.json").read_text(encoding="utf-8")
    assert text == schema(), "write it again: penstock config schema"
    assert text.endswith("}\n")


def test_the_schema_knows_every_key_and_no_other() -> None:
    sections = [json.loads(schema()), *json.loads(schema())["$defs"].values()]
    mappings = [section for section in sections if section.get("type") == "object"]
    assert len(mappings) == 41
    assert all(section["additionalProperties"] is False for section in mappings)
    keys = {
        key
        for section in mappings
        for key, about in section["properties"].items()
        if not about.get("deprecated")
    }
    assert keys == {path[-1] for path in every_key()}


def test_every_key_is_described() -> None:
    for section in json.loads(schema())["$defs"].values():
        for key, value in section.get("properties", {}).items():
            assert "description" in value or "$ref" in value, key


def fits(value: object) -> bool:
    return bool(Draft202012Validator(json.loads(schema())).is_valid(value))


@pytest.mark.parametrize("name", ["minimal.yaml", "full.yaml"])
def test_the_schema_takes_the_examples(name: str) -> None:
    assert fits(read((EXAMPLES / name).read_text(encoding="utf-8")).tree)


@pytest.mark.parametrize(
    ("keys", "taken"),
    [
        ({"listen": {"port": "${PORT:-8080}"}}, True),
        ({"log": {"level": "${LEVEL}", "access": "${ACCESS}"}}, True),
        ({"listen": {"port": "8080"}}, False),
        ({"listen": {"prot": 8080}}, False),
        ({"log": {"level": "loud"}}, False),
        ({"paths": ["PUT /x"]}, False),
    ],
)
def test_the_schema_takes_references_but_no_slips(keys: dict[str, object], taken: bool) -> None:
    pools = [{"name": "p", "backends": [{"name": "a", "url": "http://a"}]}]
    assert fits({"pools": pools, **keys}) is taken


# -- examples


@pytest.mark.parametrize("name", ["minimal.yaml", "full.yaml"])
def test_examples_load(name: str) -> None:
    path = EXAMPLES / name
    assert path.read_text(encoding="utf-8").startswith(SCHEMA_LINE)
    assert load(path, {}, {}).settings.pools[0].name == "chat"


def test_the_minimal_example_is_minimal() -> None:
    assert len((EXAMPLES / "minimal.yaml").read_text(encoding="utf-8").splitlines()) <= 10


def test_the_full_example_names_every_key_with_its_default() -> None:
    loaded = load(EXAMPLES / "full.yaml", {}, {})
    assert not [path for path, origin in loaded.origins.items() if origin == "default"]
    settings = loaded.settings
    pools = [
        PoolSettings(
            name=pool.name,
            backends=tuple(BackendSettings(name=each.name, url=each.url) for each in pool.backends),
        )
        for pool in settings.pools
    ]
    assert settings == Settings(pools=tuple(pools))


def test_other_parsers_read_the_examples_alike() -> None:
    for path in EXAMPLES.glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert yaml.safe_load(text) == read(text, {}).tree
