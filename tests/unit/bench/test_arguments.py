"""What benchmarks take as arguments, and what they say of anything else."""

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from penstock.bench.arguments import count, names, nonnegative, positive, share


@pytest.mark.parametrize(
    ("kind", "text"), [(count, "3"), (positive, "0.5"), (share, "1"), (nonnegative, "2")]
)
def test_a_number_of_its_kind_is_taken(kind: Callable[[str], float], text: str) -> None:
    assert kind(text) == float(text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(count, text) for text in ("0", "-1", "1.5", "many", "")]
    + [(positive, text) for text in ("0", "-1", "nan", "inf", "x")]
    + [(share, text) for text in ("-0.1", "1.01", "nan", "x")]
    + [(nonnegative, text) for text in ("-0.1", "nan", "-inf", "x")],
)
def test_any_other_is_refused(kind: Callable[[str], float], text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="number"):
        kind(text)


def test_names_are_those_that_are_known() -> None:
    policies = names("policy", ["session", "random"])
    assert policies("random,session") == ["random", "session"]
    with pytest.raises(ArgumentTypeError, match=r"no policy 'magic'; there are session, random"):
        policies("session,magic")
    with pytest.raises(ArgumentTypeError, match=r"no policy ''"):
        policies("session,")
