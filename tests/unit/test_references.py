"""The generated references are those of the code, and leave no key and no metric out."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from docs.label_table import LABELS, REASONS
from docs.references import FOLDER, described, exposed, pages
from penstock.balancing.backend import AdminState, Backend, State
from penstock.conf.settings import Settings
from penstock.conf.slo import PercentileSettings
from penstock.proxy.errors import backend
from penstock.proxy.telemetry.exposition import pieces
from penstock.proxy.telemetry.families import PenstockCollector
from penstock.proxy.telemetry.family_table import FAMILIES
from penstock.proxy.telemetry.metrics import Metrics


@pytest.mark.parametrize("name", pages())
def test_the_committed_page_is_the_generated_one(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == pages()[name], "call: make references"


def test_every_key_has_a_row_and_a_description() -> None:
    schema = Settings.model_json_schema()
    keys = [
        (key, node)
        for section in (schema, *schema["$defs"].values())
        for key, node in section["properties"].items()
    ]
    for key, node in keys:
        assert described(node, schema["$defs"]), key
    rows = [line for line in pages()["configuration.md"].splitlines() if line.startswith("| `")]
    paths = {row.split("|")[1].strip(" `") for row in rows}
    # A section that several keys share has a row for each.
    shared = 2 * len(PercentileSettings.model_fields)
    assert len(rows) == len(paths) == len(keys) + shared
    assert {path.rpartition(".")[2].removesuffix("[]") for path in paths} >= {
        key for key, _ in keys
    }


def test_every_metric_is_told_as_it_is_exposed() -> None:
    text = b"".join(
        pieces(PenstockCollector(Metrics(["chat"]), lambda: [Backend("b", "http://b")]).collect())
    )
    told = {exposed(name): (family.kind, family.text) for name, family in FAMILIES.items()}
    assert {
        family.name + {"counter": "_total"}.get(family.type, ""): (
            "info" if family.name == "penstock_build_info" else family.type,
            family.documentation,
        )
        for family in text_string_to_metric_families(text.decode())
    } == told


def test_every_label_and_its_values_are_told() -> None:
    labels = {label for family in FAMILIES.values() for label in family.labels}
    assert labels == {*LABELS, "reason"}
    assert {name for name, family in FAMILIES.items() if "reason" in family.labels} == {*REASONS}
    for values, text in (
        (State, LABELS["state"]),
        (AdminState, LABELS["admin_state"]),
        (failures(), REASONS["attempts"]),
    ):
        for value in values:
            assert f"`{value}`" in text


def failures() -> set[str]:
    """How an attempt may fail, as the classes of the errors name it."""
    kinds: list[type[backend.BackendError]] = [backend.BackendError, backend.StreamBroken]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return {kind.reason for kind in kinds} - {backend.BackendError.reason}
