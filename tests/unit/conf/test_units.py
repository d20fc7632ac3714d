"""Durations and sizes with units at every key that names one: file, environment, flags, schema."""

import json

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from penstock.conf.issues import ConfigError
from penstock.conf.keypath import KeyPath, keys_at, spell
from penstock.conf.load import load
from penstock.conf.settings import Settings
from penstock.conf.show import render, schema
from penstock.conf.units import plain, unit_of
from tests.unit.conf.folder import Folder, every_key

FLEET = 'pools: [{name: p, backends: [{name: a, url: "http://a:1"}]}]\n'
# With what a section must have.
BACKEND = {"backends": ["http://a:1"], "classifier.url": "http://c:1"}


def keys_with_units() -> list[KeyPath]:
    return [path for path in every_key() if 0 not in path and unit_of(str(path[-1])) is not None]


def test_units_mean_what_they_say(folder: Folder) -> None:
    loaded = folder.load(
        FLEET + "health: {interval_s: 2s, timeout_s: 500ms, slow_start_s: 1.5 m}\n"
        "timeouts: {total_s: 1h, client_idle_s: 2min, first_byte_s_per_1k_tokens: 250ms}\n"
        "limits: {body_bytes: 32MiB, bodies_bytes: 2 GB, head_bytes: 64kB}\n"
        "drain: {grace_s: 5, timeout_s: 0.1d}\n"
    )
    settings = loaded.settings
    health, timeouts, limits = settings.health, settings.timeouts, settings.limits
    assert (health.interval_s, health.timeout_s, health.slow_start_s) == (2.0, 0.5, 90.0)
    assert (timeouts.total_s, timeouts.client_idle_s) == (3600.0, 120.0)
    assert timeouts.first_byte_s_per_1k_tokens == 0.25
    assert (limits.body_bytes, limits.bodies_bytes) == (33_554_432, 2_000_000_000)
    assert (limits.head_bytes, settings.drain.timeout_s) == (64_000, 8640.0)
    shown = render(loaded)
    assert "  body_bytes: 33554432  # file:4\n" in shown
    assert "  timeout_s: 0.5  # file:2\n" in shown


@pytest.mark.parametrize("text", ["0.1", ".5", "5.", "12.25", "-0.5", "7"])
def test_a_number_without_a_unit_is_left_as_it_is(text: str) -> None:
    assert plain(text, "s") is None
    assert plain(text, "bytes") is None


def read_at(path: KeyPath, environ: dict[str, str], flags: dict[str, object]) -> object:
    """What the settings have at a path, None when they are refused."""
    try:
        node: object = load(None, environ, {**BACKEND, **flags}).settings
    except ConfigError:
        return None
    for step in path:
        node = getattr(node, str(step))
    return node


@pytest.mark.parametrize("path", keys_with_units(), ids=spell)
def test_every_key_that_names_its_unit_takes_one(path: KeyPath) -> None:
    """From the environment and by a flag; bounds leave one of two sizes."""
    means: dict[str, float] = {
        "bytes": {"64KiB": 65_536.0, "1GiB": 2.0**30},
        "ms": {"0.5s": 500.0, "1m": 60_000.0},
        "s": {"0.5s": 0.5, "1m": 60.0},
    }[unit_of(str(path[-1])) or ""]
    name = "PENSTOCK_" + "__".join(map(str, path)).upper()
    taken = 0
    for given, number in means.items():
        by_name = read_at(path, {name: given}, {})
        assert by_name in (number, None)
        assert read_at(path, {}, {spell(path): given}) == by_name
        taken += by_name is not None
    assert taken


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "health: {interval_s: 2sec}",
            'a duration such as 500ms (ms, s, m, min, h, d), got "2sec"',
        ),
        ("health: {interval_s: 2S}", 'h, d); did you mean s?, got "2S"'),
        ("limits: {body_bytes: 32mib}", 'KiB, MiB, GiB); did you mean MiB?, got "32mib"'),
        ("limits: {body_bytes: 2s}", "or a size such as 32MiB (B, kB, MB, GB, KiB, MiB, GiB), got"),
        ("limits: {body_bytes: 1.0001KiB}", 'must be a whole number of bytes, got "1.0001KiB"'),
        ("limits: {body_bytes: 1GiB8}", 'GiB), got "1GiB8"'),
        ("drain: {timeout_s: 49h}", 'drain.timeout_s: must be at most 86400, got "49h"'),
        ("drain: {grace_s: -5s}", 'must be at least 0, got "-5s"'),
        ("drain: {grace_s: 1m30s}", '(ms, s, m, min, h, d), got "1m30s"'),
        ("drain: {grace_s: ٣s}", "must be a number of seconds"),
        ("health: {fall: 2s}", 'health.fall: must be a whole number, got "2s"'),
        (f"drain: {{grace_s: {'9' * 400}s}}", "must be a number of seconds"),
    ],
)
def test_a_wrong_unit_is_told_with_those_there_are(text: str, problem: str, folder: Folder) -> None:
    (issue,) = folder.issues(FLEET + text)
    assert issue.startswith("conf.yaml:2: ")
    assert problem in issue


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"health": {"interval_s": "2s"}, "limits": {"memory_bytes": "1GiB"}}', True),
        ('{"timeouts": {"total_s": "1h", "first_byte_s_per_1k_tokens": "250ms"}}', True),
        ('{"x-fleet": [1, {"a": null}], "x-": 1}', True),
        ('{"health": {"interval_s": "2MiB"}}', False),
        ('{"limits": {"body_bytes": "32mb"}}', False),
        ('{"health": {"fall": "2s"}}', False),
        ('{"y-fleet": 1}', False),
        ('{"health": {"x-probe": 1}}', False),
    ],
)
def test_the_schema_takes_what_the_loader_takes(text: str, valid: bool, folder: Folder) -> None:
    value = json.loads(text) | {"pools": [{"name": "p", "backends": [{"name": "a", "url": "u"}]}]}
    assert Draft202012Validator(json.loads(schema())).is_valid(value) is valid
    written = json.dumps(value).replace('"u"', '"http://a"')
    assert folder.load(written) if valid else folder.issues(written)


def test_what_begins_with_x_is_free_for_anchors(folder: Folder) -> None:
    text = (
        "x-gpu: &gpu {weight: 2.0}\n"
        "pools:\n  - name: p\n    backends:\n"
        '      - {<<: *gpu, name: a, url: "http://a:1"}\n'
    )
    (backend,) = folder.load(text).settings.pools[0].backends
    assert backend.weight == 2.0
    text = FLEET + "x-one: {anything: [goes]}\nX-two: 1\nhealth: {x-three: 1}\n"
    assert folder.issues(text) == [
        "conf.yaml:3: X-two: unknown key; allowed here: " + ", ".join(Settings.model_fields),
        "conf.yaml:4: health.x-three: unknown key; allowed here: "
        + ", ".join(keys_at(Settings, ("health",))),
    ]
