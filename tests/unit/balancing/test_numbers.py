"""Numbers in bodies as backends read them: pydantic takes some strings for integers."""

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.reader import GENERATION, Reader
from penstock.balancing.tokens import TokenEstimator


def asked(member: str) -> Ask:
    body = b'{"prompt":"x",%b}' % member.encode()
    return Reader(TokenEstimator(1)).read("/v1/completions", [], body, GENERATION)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("16", 16),
        ("16.0", 16),
        ("4e3", 4_000),
        ("true", 1),
        ('"16"', 16),
        ('" 16 "', 16),
        ('"16.0"', 16),
        ('"+5"', 5),
        ('"1_000"', 1_000),
        ('"' + " " * 2_000 + '16"', 16),
    ],
)
def test_what_a_backend_takes_for_an_integer(text: str, number: int) -> None:
    assert asked(f'"n":{text}').choices == min(number, 1_024)
    assert asked(f'"max_tokens":{text}').max_tokens == number
    assert asked(f'"max_tokens":1,"max_completion_tokens":{text}').max_tokens == number


@pytest.mark.parametrize(
    "text",
    [
        "16.5",
        '"1e3"',
        '"0x10"',
        '"x"',
        "null",
        "[16]",
        '"' + "1" * 5_000 + '"',
        "-3",
        '"-3"',
        "false",
        "1e400",
        "{}",
    ],
)
def test_what_it_refuses(text: str) -> None:
    assert asked(f'"n":{text}').choices == 1
    assert asked(f'"max_tokens":{text}').max_tokens is None
