"""A request changed: only what it has can differ."""

import pytest

from penstock.balancing.ask import Ask


def test_a_change_of_what_no_request_has_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="modle"):
        Ask("/v1/completions").changed(modle="m")
    assert Ask("/v1/completions").changed(model="m").model == "m"
