"""Streams cut into two reads at every byte: the same bytes out, the same counts.

The recordings of a real vLLM and of the simulated server. An ordinary run takes every
STRIDEth byte of each; `make splits` takes them all.
"""

import os
import re

import pytest

from penstock.proxy.errors.backend import StreamBroken
from tests.unit.proxy.data.golden import GOLDEN, STREAMS, Golden
from tests.unit.proxy.data.recorded import ASKED, recorded
from tests.unit.proxy.data.relayed import DONE, TOKENS, USAGE, Request
from tests.unit.proxy.data.test_golden import Passage

STRIDE = int(os.environ.get("TEST_SPLIT_STRIDE", "23"))
EVERY = [*STREAMS, *ASKED]


def outcome(golden: Golden, *pieces: bytes) -> tuple[bytes, object, object, int]:
    """(the body that went out, how it ended, usage, tokens counted)."""
    passage = Passage(golden).feed(*pieces).close()
    (error,) = passage.request.ends
    ended = (type(error), error.reason) if error is not None else passage.request.complete
    usage = passage.request.relay.usage if error is None else None
    return passage.sent, ended, usage, passage.request.lease.generated_tokens


def test_there_are_fifty() -> None:
    assert len(EVERY) >= 50


@pytest.mark.parametrize("name", EVERY)
def test_the_same_at_every_split(name: str) -> None:
    golden = GOLDEN.get(name) or recorded(name)
    answer = golden.answer
    bytewise = outcome(golden, *[answer[i : i + 1] for i in range(len(answer))])
    may_hide = isinstance(bytewise[1], tuple) and bytewise[1][0] is StreamBroken
    wrong = []
    for cut in range(len(name) % STRIDE, len(answer) + 1, STRIDE):
        got = outcome(golden, answer[:cut], answer[cut:])
        # What fails in the read of its first token can still be tried elsewhere.
        if got != bytewise and not (may_hide and got[0] == b""):
            wrong.append((cut, got))
    assert not wrong


@pytest.mark.parametrize("name", EVERY)
def test_a_read_that_ends_within_an_event_after_a_whole_one(name: str) -> None:
    """Whatever came before: most of all where what is whole is no ordinary token."""
    golden = GOLDEN.get(name) or recorded(name)
    answer = golden.answer
    bytewise = outcome(golden, *[answer[i : i + 1] for i in range(len(answer))])
    may_hide = isinstance(bytewise[1], tuple) and bytewise[1][0] is StreamBroken
    ends = [match.end() for match in re.finditer(rb"\n\r?\n(?:\r\n)?", answer)]
    last = max(0, len(ends) - 12)  # the answer's own end is where the other events are
    for begin, middle, end in zip(ends[last:], ends[last + 1 :], ends[last + 2 :], strict=False):
        cut = (middle + end) // 2
        got = outcome(golden, answer[:begin], answer[begin:cut], answer[cut:])
        assert got == bytewise or (may_hide and got[0] == b"")


def test_after_tokens_any_event_may_be_alone_in_a_read() -> None:
    for alone in (b": ping\n\n", USAGE, TOKENS[-1], TOKENS[0].replace(b'":', b'": ')):
        request = Request().feed(*TOKENS[:2], alone + DONE[:5], DONE[5:]).end()
        assert request.ends == [None]
        assert request.complete
