"""What a backend says of an answer's tokens is believed as far as they can have gone by."""

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.lease import TOKENS_AT_ONCE_MAX, Lease
from penstock.proxy.data.calibration import (
    CONTEXT_TOKENS_MAX,
    UNSEEN_TOKENS_MAX,
    believable,
    calibrate,
)
from penstock.proxy.dialects.dialect import TOKENS_MAX, Usage
from tests.unit.proxy.data.relayed import DONE, ERROR, TOKENS, Request
from tests.unit.proxy.data.test_waiting_bodies import plane

ASK = Ask("/", prompt_tokens=100, stream=True)


def leased(ask: Ask, tokens: int) -> Lease:
    lease = Lease(Backend("b0", "http://127.0.0.1:1"), ask, 0.0)
    lease.first_token(0.1)
    lease.tokens(tokens)
    return lease


def test_what_may_be_is_believed_as_it_is() -> None:
    for usage in (Usage(100, 10), Usage(30_000, 30_000, 29_000), Usage(0, 0), Usage(1_600, 0, 0)):
        assert believable(usage, ASK, leased(ASK, 10), 1_000) is usage
    long = Usage(100, TOKENS_AT_ONCE_MAX * 10_000)  # speculative decoding
    assert believable(long, ASK, leased(ASK, 10_000), 1_000) is long
    allowed = Ask("/", prompt_tokens=100, max_tokens=200_000, choices=2)
    assert believable(Usage(1, 400_000), allowed, None, 0) == Usage(1, 400_000)
    assert believable(Usage(1, 400_000), Ask("/"), None, 500_000) == Usage(1, 400_000)


def test_nonsense_is_bounded() -> None:
    absurd = Usage(TOKENS_MAX - 1, TOKENS_MAX - 1, TOKENS_MAX - 1)
    bounded = believable(absurd, ASK, leased(ASK, 10), 1_000)
    assert bounded.completion_tokens == UNSEEN_TOKENS_MAX
    assert bounded.prompt_tokens == UNSEEN_TOKENS_MAX + TOKENS_AT_ONCE_MAX * 100
    assert bounded.cached_tokens == bounded.prompt_tokens
    assert believable(Usage(1, TOKENS_MAX - 1), ASK, None, 0) == Usage(1, UNSEEN_TOKENS_MAX)


def test_what_an_engine_adds_to_a_response_is_believed() -> None:
    """The responses before it, and the turns of its tools, never passed through here."""
    usage = Usage(120_000, 500, 110_000)
    for ask in (
        Ask("/v1/responses", prompt_tokens=20, response_id="resp_1"),
        Ask("/v1/responses", prompt_tokens=20),
    ):
        assert believable(usage, ask, leased(ask, 500), 2_000) is usage
        absurd = Usage(TOKENS_MAX - 1, 500, TOKENS_MAX - 1)
        bounded = believable(absurd, ask, leased(ask, 500), 2_000)
        assert bounded == Usage(CONTEXT_TOKENS_MAX, 500, CONTEXT_TOKENS_MAX)


def test_a_prompt_is_believed_up_to_the_context_that_is_told() -> None:
    """Images and templates are many tokens of few bytes."""
    lease = leased(ASK, 10)
    assert believable(Usage(120_000, 10), ASK, lease, 0).prompt_tokens < 40_000
    lease.backend.contexts = {None: 131_072}
    assert believable(Usage(120_000, 10), ASK, lease, 0) == Usage(120_000, 10)
    assert believable(Usage(TOKENS_MAX - 1, 10), ASK, lease, 0) == Usage(131_072, 10)
    lease.backend.contexts = {None: 2**60}
    assert believable(Usage(TOKENS_MAX - 1, 10), ASK, lease, 0) == Usage(CONTEXT_TOKENS_MAX, 10)


async def test_what_did_not_pass_through_here_teaches_nothing() -> None:
    it = plane()
    for prompt_tokens, taught in ((40_000, 0), (400, 1)):
        ask = Ask("/v1/responses", prompt_tokens=100, measured=(100.0, 0))
        lease = leased(ask, 500)
        usage = believable(Usage(prompt_tokens, 500, 0), ask, lease, 0)
        assert usage.prompt_tokens == prompt_tokens
        calibrate(it, ask, lease, usage, whole=False)
        assert sum(it.metrics.estimate_ratio.counts) == taught


def test_a_refusal_after_tokens_is_told_and_one_before_is_the_requests() -> None:
    fault = ERROR.replace(b"503", b"400")
    for first, midway in ((TOKENS[1], True), (b": ping\n\n", False)):
        request = Request().feed(first, fault, DONE).end()
        assert request.ends == [None]
        assert not request.relay.served
        assert request.relay.refused_midway is midway
    request = Request().feed(TOKENS[1], DONE).end()
    assert not request.relay.refused_midway
