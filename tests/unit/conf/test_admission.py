"""Classes of requests, and which of them a tenant may have."""

import pytest

from penstock.conf.show import render
from tests.unit.conf.folder import FLEET, Folder

TENANT = FLEET + (
    "tenants:\n  - {name: research, class: batch, classes: [interactive], weight: 2,"
    f' keys: [{{key_sha256: "{"0" * 64}"}}]}}\n'
)


def refused(folder: Folder, text: str) -> str:
    return "\n".join(folder.issues(text))


def test_the_usual_classes_are_there_and_requests_wait(folder: Folder) -> None:
    admission = folder.load(FLEET).settings.admission
    assert [each.name for each in admission.classes] == ["interactive", "standard", "batch"]
    assert admission.default_class == "standard"
    assert admission.enabled


def test_a_tenant_has_a_class_by_that_very_key(folder: Folder) -> None:
    loaded = folder.load(TENANT)
    tenant = loaded.settings.tenants[0]
    assert (tenant.service_class, tenant.classes, tenant.weight) == ("batch", ("interactive",), 2.0)
    assert loaded.origins["tenants[0].class"].startswith("file")
    assert "service_class" in refused(
        folder, TENANT.replace("class: batch", "service_class: batch")
    )


def test_a_class_that_is_not_there_is_named_with_those_that_are(folder: Folder) -> None:
    told = refused(folder, TENANT.replace("class: batch", "class: bulk"))
    assert "research has the class bulk" in told
    assert "there are interactive, standard, batch" in told
    told = refused(folder, TENANT.replace("[interactive]", "[urgent]"))
    assert "research has the class urgent" in told
    told = refused(folder, FLEET + "admission: {default_class: usual}\n")
    assert "conf.yaml:5: admission.default_class: there is no class usual" in told


def test_classes_have_names_of_their_own_and_leave_half_to_the_highest(folder: Folder) -> None:
    one = "{name: a, max_wait_s: 1, share_min: 0.3}"
    assert "a is given twice" in refused(
        folder, FLEET + f"admission: {{classes: [{one}, {one}]}}\n"
    )
    other = one.replace("a,", "b,", 1)
    told = refused(folder, FLEET + f"admission: {{classes: [{one}, {other}], default_class: a}}\n")
    assert "all share_min together must be at most 0.5" in told
    assert "classes" in refused(folder, FLEET + "admission: {classes: []}\n")


def test_the_default_class_has_a_share_without_being_given_one(folder: Folder) -> None:
    loaded = folder.load(FLEET)
    assert loaded.settings.admission.shares == (0.0, 0.2, 0.1)
    assert "share_min: 0.2  # default" in render(loaded)


@pytest.mark.parametrize(
    ("classes", "default", "shares"),
    [
        ("{name: a, max_wait_s: 1}, {name: b, max_wait_s: 1}", "a", (0.0, 0.0)),
        ("{name: a, max_wait_s: 1}, {name: b, max_wait_s: 1}", "b", (0.0, 0.2)),
        ("{name: a, max_wait_s: 1}, {name: b, max_wait_s: 1, share_min: 0}", "b", (0.0, 0.0)),
        # All together have half of the tokens at most.
        (
            "{name: a, max_wait_s: 1}, {name: b, max_wait_s: 1},"
            " {name: c, max_wait_s: 1, share_min: 0.375}",
            "b",
            (0.0, 0.125, 0.375),
        ),
    ],
)
def test_shares_that_are_not_given(
    folder: Folder, classes: str, default: str, shares: tuple[float, ...]
) -> None:
    text = f"admission: {{classes: [{classes}], default_class: {default}}}\n"
    assert folder.load(FLEET + text).settings.admission.shares == shares


@pytest.mark.parametrize("value", ["0", "-1", ".nan", "100000", "soon"])
def test_how_long_a_class_waits_is_a_time(folder: Folder, value: str) -> None:
    text = f"admission: {{classes: [{{name: standard, max_wait_s: {value}}}]}}\n"
    assert "admission.classes[0].max_wait_s" in refused(folder, FLEET + text)
