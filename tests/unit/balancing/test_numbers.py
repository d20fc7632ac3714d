"""Values in bodies: the plain forms of JSON are taken, and no others."""

import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.forms import MalformedAsk
from penstock.balancing.reader import COUNT_MAX, GENERATION, PROMPTS_MAX, Reader
from penstock.balancing.tokens import TokenEstimator


def asked(member: str, path: str = "/v1/completions") -> Ask:
    body = b'{"prompt":"x",%b}' % member.encode()
    return Reader(TokenEstimator(1)).read(path, [], body, GENERATION)


@pytest.mark.parametrize(("text", "number"), [("16", 16), ("16.0", 16), ("4e3", 4_000)])
def test_a_whole_number(text: str, number: int) -> None:
    assert asked(f'"n":{text}').choices == number
    assert asked(f'"max_tokens":{text}').max_tokens == number
    chat = f'"max_tokens":1,"max_completion_tokens":{text}'
    assert asked(chat, "/v1/chat/completions").max_tokens == number


ODD = ["true", "false", '"16"', '" 16 "', '"1_000"', '"' + " " * 2_000 + '16"', '"x"']


@pytest.mark.parametrize("text", [*ODD, "16.5", "[16]", "{}", "1e400", "1" * 5_000])
def test_no_whole_number(text: str) -> None:
    for name in ("n", "max_tokens", "truncate_prompt_tokens"):
        with pytest.raises(MalformedAsk, match=f"^`{name}` must be a whole number"):
            asked(f'"{name}":{text}')
        asked(f'"{name}":{text}', "/v1/responses")  # where nobody reads it


@pytest.mark.parametrize("text", ["null", "-3", "0", "-0.0"])
def test_numbers_that_mean_none_or_that_backends_refuse(text: str) -> None:
    assert asked(f'"n":{text}').choices == 1
    assert asked(f'"max_tokens":{text}').max_tokens is None


def test_numbers_beyond_reason() -> None:
    """More tokens than any context has size timeouts, so they must neither overflow nor switch one
    off. More choices than any engine makes are refused."""
    assert asked(f'"max_tokens":{10**15}').max_tokens == COUNT_MAX
    assert asked(f'"max_tokens":{10**30}').max_tokens == COUNT_MAX
    assert asked(f'"n":{PROMPTS_MAX}').choices == PROMPTS_MAX
    for text in (f"{PROMPTS_MAX + 1}", "1e9"):
        with pytest.raises(MalformedAsk, match="`n` may be at most 16,384"):
            asked(f'"n":{text}')
