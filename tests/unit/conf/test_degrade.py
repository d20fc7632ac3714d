"""The steps of degradation: what is wrong with them is told with its line."""

import pytest

from tests.unit.conf.folder import FLEET, Folder

STEPS = (
    FLEET
    + """\
admission:
  degrade:
    - {class: batch, pressure: 0.5, max_tokens: 512}
    - {class: standard, pressure: 0.8, prompt_tokens: 32000}
"""
)
KEY = "tenants: [{name: research, keys: [{key_sha256: '%s'}]%s}]\n"


def tenant(more: str = "") -> str:
    return KEY % ("0" * 64, more)


def test_a_step_has_a_class_a_pressure_and_one_limit(folder: Folder) -> None:
    steps = folder.load(STEPS).settings.admission.degrade
    assert [(each.service_class, each.pressure) for each in steps] == [
        ("batch", 0.5),
        ("standard", 0.8),
    ]
    assert [(each.max_tokens, each.prompt_tokens) for each in steps] == [(512, None), (None, 32000)]


def test_by_default_there_are_none_and_no_tenant_has_opted_in(folder: Folder) -> None:
    settings = folder.load(FLEET + tenant()).settings
    assert settings.admission.degrade == ()
    assert not settings.tenants[0].degrade


@pytest.mark.parametrize("key", ["max_tokens: 512", "prompt_tokens: 32000"])
@pytest.mark.parametrize("value", ["0", "-1", "9007199254740993", "1.5", "many"])
def test_a_limit_is_an_amount(folder: Folder, key: str, value: str) -> None:
    name = key.partition(":")[0]
    (told,) = folder.issues(STEPS.replace(key, f"{name}: {value}"))
    line = 7 if name == "max_tokens" else 8
    assert told.startswith(f"conf.yaml:{line}: admission.degrade[{line - 7}].{name}: ")


@pytest.mark.parametrize("value", ["0", "-0.5", "1.01", ".nan", ".inf", "high"])
def test_a_pressure_is_above_nought_and_at_most_one(folder: Folder, value: str) -> None:
    (told,) = folder.issues(STEPS.replace("pressure: 0.5", f"pressure: {value}"))
    assert told.startswith("conf.yaml:7: admission.degrade[0].pressure: ")
    highest = folder.load(STEPS.replace("pressure: 0.5", "pressure: 1"))
    assert highest.settings.admission.degrade[0].pressure == 1.0


def test_a_class_that_is_not_there_is_named(folder: Folder) -> None:
    (told,) = folder.issues(STEPS.replace("class: standard", "class: bulk"))
    assert told.startswith("conf.yaml:8: admission.degrade[1].class: there is no class bulk")
    assert told.endswith('there are interactive, standard, batch, got "bulk"')


def test_a_step_that_does_two_things_or_nothing_is_refused(folder: Folder) -> None:
    for limits in ("max_tokens: 512, prompt_tokens: 9", "max_tokens: 512, fall_back: true", ""):
        (told,) = folder.issues(STEPS.replace("max_tokens: 512", limits))
        assert told.startswith("conf.yaml:7: admission.degrade[0]: ")
        assert "give one of max_tokens, prompt_tokens and fall_back: true" in told


ROUTE = """\
routes:
  - {name: all, to: [{pool: chat}], fallbacks: [{pool: chat, model: small, on: [%s]}]}
"""


def test_a_step_that_falls_back_needs_a_route_with_a_fall_back_for_overload(folder: Folder) -> None:
    text = STEPS.replace("max_tokens: 512", "fall_back: true")
    for route in ("", ROUTE % "errors"):
        (told,) = folder.warnings(text + route)
        assert told.startswith("conf.yaml:7: admission.degrade[0]: does nothing: no route")
    assert folder.warnings(text + ROUTE % "overload") == []


def test_what_does_nothing_is_told(folder: Folder) -> None:
    assert folder.warnings(STEPS) == []
    assert folder.warnings(STEPS + tenant(", degrade: true")) == []
    (told,) = folder.warnings(STEPS + tenant())
    assert told.endswith("does nothing: no tenant has `degrade: true`")
    (told,) = folder.warnings(FLEET + tenant(", degrade: true"))
    assert told.startswith("conf.yaml:5: tenants[0].degrade: does nothing")
    (told,) = folder.warnings(STEPS + "  enabled: false\n")
    assert told.endswith("does nothing while admission.enabled is false")
