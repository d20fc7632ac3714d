"""How long a client is to wait, as OpenAI writes it."""

import pytest

from penstock.proxy.data.budgets import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0ms"), (0.012, "12ms"), (1.2, "1s"), (360.0, "6m0s"), (3_723.0, "1h2m3s")],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text
