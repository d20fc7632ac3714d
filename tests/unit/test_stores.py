"""What is remembered stays within the bounds that the documents tell."""

import re
from pathlib import Path

import pytest

from penstock.balancing.verdict.window import WINDOW_S
from penstock.proxy.telemetry.recent import ENTRIES_MAX, FAILED_MAX
from tests.stores import MB, STORES, Store, held_bytes, recent_requests

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


def test_the_documents_tell_each_bound() -> None:
    section = OPERATIONS.read_text().partition("## Memory of what is remembered")[2]
    told = re.findall(r"^\| ([^|]+) \| (\d+) MB \|", section, re.MULTILINE)
    assert told == [(each.name, f"{each.bound_mb:g}") for each in STORES]


# The last one is rendered, which takes seconds; `make stores` tries it.
@pytest.mark.parametrize("store", STORES[:-1], ids=lambda store: store.name)
def test_a_full_store_is_within_its_bound_and_not_far_from_it(store: Store) -> None:
    held, _ = held_bytes(store.fill)
    assert 0.5 * store.bound_mb < held / MB <= store.bound_mb


def test_the_store_of_requests_is_full() -> None:
    recent = recent_requests()
    assert len(recent.failed()) == FAILED_MAX
    assert len(recent.all()) > 0.95 * ENTRIES_MAX
    assert WINDOW_S == 10.0, "docs/operations.md names it"
