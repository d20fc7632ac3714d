"""How much of what a cache should hold is believed, from reports of what was found."""

import pytest

from penstock.balancing.hit_correction import REPORT_TOKENS_MAX, HitCorrections


def test_half_of_more_than_one_report_counts_is_half() -> None:
    hits = HitCorrections()
    for _ in range(20):
        hits.observe(("a", 0), 4 * REPORT_TOKENS_MAX, 2 * REPORT_TOKENS_MAX)
    assert hits.of(("a", 0)) == pytest.approx(0.5, abs=0.05)


def test_a_lack_is_first_that_of_the_kind_of_which_the_least_was_found() -> None:
    corrections = HitCorrections()
    for _ in range(4):
        corrections.divide({("never", 0): 8_000}, 0.0)
    for _ in range(50):
        corrections.divide({("never", 0): 8_000, ("always", 0): 8_000}, 8_000.0)
    assert corrections.of(("always", 0)) == 1.0
    assert corrections.of(("never", 0)) < 0.3
