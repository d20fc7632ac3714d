"""Streams cut into two reads at every byte: the same bytes out, the same counts.

The recordings of a real vLLM and of the simulated server. An ordinary run takes every
STRIDEth byte of each; `make splits` takes them all.
"""

import os

import pytest

from proxy.errors import StreamBroken
from tests.unit.golden import FOLDER, GOLDEN, STREAMS, Golden
from tests.unit.test_golden import Passage

STRIDE = int(os.environ.get("TEST_SPLIT_STRIDE", "23"))
RECORDED = {
    path.stem: Golden.read(path) for path in sorted((FOLDER.parent / "recorded").glob("*.http"))
}
EVERY = {name: GOLDEN[name] for name in STREAMS} | RECORDED


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
    golden = EVERY[name]
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
