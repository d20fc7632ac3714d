"""The settings of canaries."""

import pytest
from pydantic import ValidationError

from penstock.conf.canary import CanarySettings, JudgeSettings


def test_usual_settings() -> None:
    canary = CanarySettings.model_validate({"pool": "next", "every_s": "5m"})
    assert canary.steps == (1.0, 5.0, 25.0, 50.0, 100.0)
    assert canary.every_s == 300.0
    assert canary.judge.clients_min == 2


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"steps": [1, 5]}, "the last step must be 100"),
        ({"steps": [5, 5, 100]}, "each step must be more than the one before: 5 is not"),
        ({"steps": [100]}, "at least 2 items"),
        ({"steps": [0, 100]}, "greater than or equal to 0.1"),
        ({"judge": {"errors": 0.0001}}, "greater than or equal to 0.002"),
        ({"judge": {"clients_min": 3}}, "less than or equal to 2"),
        ({"every": 5}, "Extra inputs"),
    ],
)
def test_what_is_refused(given: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        CanarySettings.model_validate({"pool": "next"} | given)


def test_a_judge_compares_something() -> None:
    keys = ("errors", "hung", "broken", "empty", "refused", "ttft", "itl", "length")
    nothing = dict.fromkeys(keys)
    with pytest.raises(ValidationError, match="judge compares nothing"):
        CanarySettings.model_validate({"pool": "next", "judge": nothing})
    for each in ({"ttft": 0.2}, {"hung": 0.2}):
        assert JudgeSettings.model_validate(nothing | each).model_dump().items() >= each.items()
