"""Which class a request has."""

from typing import Any

import pytest

from penstock.conf.settings import Settings
from penstock.proxy.data.service_classes import ServiceClasses

FLEET = [{"name": "p", "backends": [{"name": "b", "url": "http://127.0.0.1:1"}]}]
TENANTS = [
    {"name": "plain", "keys": [{"key": "k" * 16}]},
    {"name": "grand", "keys": [{"key": "l" * 16}], "classes": ["interactive"]},
    {"name": "low", "keys": [{"key": "m" * 16}], "class": "batch"},
]


def classes(**admission: Any) -> ServiceClasses:
    settings = {"pools": FLEET, "tenants": TENANTS, "admission": admission}
    return ServiceClasses(Settings.model_validate(settings))


def served(
    known: ServiceClasses, tenant: str, tier: str | None = None, header: str | None = None
) -> str:
    asked = header.encode() if header is not None else None
    return known.names[known.rank_of(tenant, asked, tier)]


@pytest.mark.parametrize(
    ("tenant", "tier", "name"),
    [
        ("plain", None, "standard"),
        ("plain", "auto", "standard"),
        ("plain", "default", "standard"),
        ("plain", "standard_only", "standard"),
        ("plain", "flex", "batch"),
        ("plain", "batch", "batch"),
        ("plain", "priority", "standard"),  # not granted
        ("plain", "nonsense", "standard"),
        ("grand", "priority", "interactive"),
        ("grand", "fast", "interactive"),
        ("grand", None, "standard"),
        ("low", "auto", "batch"),
        ("low", "priority", "batch"),
    ],
)
def test_a_service_tier_asks_for_a_class(tenant: str, tier: str | None, name: str) -> None:
    assert served(classes(), tenant, tier) == name


def test_the_header_counts_before_the_tier() -> None:
    assert served(classes(), "grand", "flex", "interactive") == "interactive"
    assert served(classes(), "plain", "flex", "interactive") == "standard"
    assert served(classes(), "plain", "flex", "unknown") == "standard"


def test_the_tiers_are_the_class_above_the_default_one_and_the_lowest() -> None:
    four = [{"name": name, "max_wait_s": 10.0} for name in ("urgent", "chat", "plain", "bulk")]
    tenants = [
        TENANTS[0] | {"classes": ["urgent", "chat"]},
        TENANTS[1] | {"name": "urgent", "class": "urgent", "classes": []},
    ]
    settings = {
        "pools": FLEET,
        "tenants": tenants,
        "admission": {"classes": four, "default_class": "plain"},
    }
    known = ServiceClasses(Settings.model_validate(settings))
    assert served(known, "plain", "priority") == "chat"
    assert served(known, "plain", "flex") == "bulk"
    assert served(known, "urgent", "priority") == "urgent"
    one = {"pools": FLEET, "admission": {"classes": four[:1], "default_class": "urgent"}}
    alone = ServiceClasses(Settings.model_validate(one))
    assert served(alone, "", "priority") == served(alone, "", "flex") == "urgent"


def test_every_class_has_a_priority_for_vllm_and_all_but_the_default_one_a_name_to_tell() -> None:
    assert classes().told == [(b"interactive", b"-1"), (b"", b"0"), (b"batch", b"1")]
