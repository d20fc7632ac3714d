"""How much of what a cache should hold is believed, from reports of what was found."""

import pytest

from penstock.balancing.hit_correction import REPORT_TOKENS_MAX, HitCorrections


def test_half_of_more_than_one_report_counts_is_half() -> None:
    hits = HitCorrections()
    for _ in range(20):
        hits.observe(("a", 0), 4 * REPORT_TOKENS_MAX, 2 * REPORT_TOKENS_MAX)
    assert hits.of(("a", 0)) == pytest.approx(0.5, abs=0.05)
