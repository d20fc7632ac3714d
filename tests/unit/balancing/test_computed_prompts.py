"""Long prompts that no engine computes: little work once that is likely; and who may say so."""

from typing import Any

import msgspec
import pytest

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.computed_prompts import FITS_MIN, OverContext
from penstock.balancing.gate import Gate
from penstock.balancing.lease import Lease
from penstock.balancing.reader import GENERATION, Reader
from penstock.balancing.tokens import TokenEstimator
from penstock.health.engine import read_models
from tests.unit.balancing.backends import gate_over, numbered

LONG = 300_000
CONTEXT = 131_072
OVER = 190_000  # by its estimate, which may be off by that


def fleet(*contexts: int, model: str | None = None) -> tuple[Gate, list[Backend]]:
    backends = numbered(len(contexts))
    for backend, context in zip(backends, contexts, strict=True):
        backend.contexts = {None: context, model: context} if context else {}
    return gate_over(backends, "token_cost"), backends


def ask(tokens: int = LONG, **fields: Any) -> Ask:
    fields = {"client": "a", "stream": True, "uncut": True, **fields}
    return Ask("/v1/chat/completions", prompt_tokens=tokens, **fields)


def served(gate: Gate, lease: Lease, now_s: float = 1.0) -> None:
    lease.first_token(now_s)
    gate.computed(lease)
    lease.complete(now_s)


def refused(gate: Gate, lease: Lease, now_s: float = 1.0) -> None:
    gate.refused(lease, now_s)
    lease.complete(now_s)


def test_what_no_backend_takes_is_no_work() -> None:
    gate, backends = fleet(131_072, 131_072)
    lease = gate.choose(ask(), 0.0)
    assert lease.backend.queued_prefill_tokens == 1
    assert lease.backend.wait_work(0.0) < 100
    refused(gate, lease)
    assert all(backend.own.idle for backend in backends)


MILLION = 1_048_576


@pytest.mark.parametrize(
    ("contexts", "tokens", "fields", "queued"),
    [
        # What is somewhat over the context by its estimate is work, and what is far over it none.
        ((CONTEXT, CONTEXT), OVER, {}, CONTEXT),
        ((CONTEXT,), LONG, {}, 1),
        # No request holds more than its model can, whatever it looks like: thousands of images.
        ((CONTEXT, CONTEXT), 5_000_000, {"uncut": False}, CONTEXT),
        ((CONTEXT, CONTEXT), 10_000_000, {"uncut": False}, CONTEXT),
        ((0, CONTEXT), 500_000_000, {"prompts": 2}, 2 * MILLION),
        # `truncate_prompt_tokens: -1`, to what the model takes.
        ((512, 512), 3_000, {"uncut": False, "generates": False}, 512),
        ((512, 512), 60_000, {"uncut": False, "generates": False, "prompts": 20}, 512 * 20),
        # One backend's word is not enough. Who lies shorter attracts nothing.
        ((1, CONTEXT), 100_000, {}, 100_000),
        ((1, 0), 100_000, {}, 100_000),
        # Each prompt of several is compared.
        ((CONTEXT,), LONG, {"prompts": 10}, LONG),
        ((CONTEXT,), 10 * LONG, {"prompts": 10}, 1),
        # An adapter has the context of its base.
        ((CONTEXT,), LONG, {"model": "base"}, 1),
        ((CONTEXT,), LONG, {"model": "adapter"}, 1),
        # Where a context is not known, nothing is refused.
        ((0, CONTEXT), 10_000_000, {}, MILLION),
        ((0, 0), 10_000_000, {}, MILLION),
    ],
)
def test_how_much_of_a_prompt_is_queued(
    contexts: tuple[int, ...], tokens: int, fields: dict[str, Any], queued: int
) -> None:
    gate, _ = fleet(*contexts, model="base")
    for _ in range(8):
        assert gate.choose(ask(tokens, **fields), 0.0).queued_tokens == queued


def test_a_block_of_a_prompt_is_no_longer_than_the_prompt_may_be() -> None:
    gate, _ = fleet(0, 131_072)
    lease = gate.choose(ask(500_000_000, prompts=2, blocks=(1, 2), block_tokens=2.5e8), 0.0)
    assert lease.ask.leading_tokens(1) <= MILLION


def test_what_is_far_over_every_context_is_refused_and_an_exact_count_sooner() -> None:
    gate, _ = fleet(131_072, 32_768)
    with pytest.raises(OverContext) as raised:
        gate.choose(ask(4 * 131_072 + 1), 0.0)
    assert raised.value.context_tokens == 131_072
    with pytest.raises(OverContext):
        gate.choose(ask(OVER + 10_000, counted=(200_000.0, 1.0)), 0.0)
    gate.choose(ask(OVER, counted=(190_000.0, 1.0)), 0.0)


def test_what_goes_on_at_its_owner_holds_no_more_either() -> None:
    gate, (backend, _) = fleet(131_072, 131_072)
    gate.owners.put("resp_1", backend.name, 0.0)
    lease = gate.choose(ask(5_000_000, uncut=False, response_id="resp_1"), 1.0)
    assert lease.bound
    assert lease.queued_tokens == 131_072


def test_what_was_served_is_work_the_next_time() -> None:
    gate, _ = fleet(131_072, 131_072)
    leases = [gate.choose(ask(), 0.0) for _ in range(4)]
    for lease in leases:
        speed = lease.backend.prefill_speed.work_s
        served(gate, lease)
        assert lease.backend.prefill_speed.work_s == speed  # for nobody knows how much work
    assert gate.choose(ask(), 0.0).queued_tokens == 131_072


def test_what_was_not_expected_is_held_once_it_is_there() -> None:
    gate, _ = fleet(131_072)
    lease = gate.choose(ask(), 0.0)
    lease.first_token(1.0)
    assert lease.backend.active_decode_tokens == 131_072
    lease.end(2.0)
    assert lease.backend.own.idle


def test_what_was_refused_is_expected_to_be_and_only_that() -> None:
    gate, backends = fleet(CONTEXT, CONTEXT)
    for backend in backends:
        backend.contexts = {None: CONTEXT, "m": CONTEXT}
    for _ in range(20):
        refused(gate, gate.choose(ask(OVER), 0.0))
    assert gate.choose(ask(OVER), 0.0).queued_tokens < CONTEXT / 50
    assert gate.choose(ask(OVER, client="b"), 0.0).queued_tokens == CONTEXT
    assert gate.choose(ask(OVER, model="m"), 0.0).queued_tokens == CONTEXT
    assert gate.choose(ask(OVER // 4), 0.0).queued_tokens == OVER // 4
    for _ in range(4):
        served(gate, gate.choose(ask(OVER), 0.0))
    assert gate.choose(ask(OVER), 0.0).queued_tokens == CONTEXT


def test_where_no_context_is_told_only_what_is_longer_than_any_computed_counts_for_less() -> None:
    gate, _ = fleet(0, CONTEXT)
    for _ in range(20):
        refused(gate, gate.choose(ask(), 0.0))
    assert gate.choose(ask(), 0.0).queued_tokens < LONG / 50
    served(gate, gate.choose(ask(LONG + 1, client="b"), 0.0))
    assert gate.choose(ask(), 0.0).queued_tokens == LONG * FITS_MIN


@pytest.mark.parametrize("context", [0, CONTEXT, 10 * CONTEXT])
def test_refusals_make_no_prompt_that_fits_count_for_next_to_nothing(context: int) -> None:
    """A client may have as many as it likes, for other reasons than their length."""
    gate, _ = fleet(context, context)
    served(gate, gate.choose(ask(100_000, client="b"), 0.0))
    for _ in range(40):
        refused(gate, gate.choose(ask(100_000), 0.0))
    assert [gate.choose(ask(100_000), 0.0).queued_tokens for _ in range(12)] == [25_000] * 12
    assert gate.choose(ask(100_000, client="c"), 0.0).queued_tokens == 100_000


def test_prompts_that_are_left_drive_nobody_away_for_long() -> None:
    """Their images never come, and their client leaves before the engine has heard of them."""
    gate, _ = fleet(CONTEXT, CONTEXT)
    for _ in range(8):
        lease = gate.choose(ask(100_000), 0.0)
        gate.left(lease, 1.0)
        lease.end(1.0)
    assert gate.choose(ask(100_000), 0.0).queued_tokens == 25_000
    assert gate.choose(ask(100_000, client="b"), 0.0).queued_tokens == 100_000
    for _ in range(8):
        served(gate, gate.choose(ask(100_000), 0.0))
    assert gate.choose(ask(100_000), 0.0).queued_tokens == 100_000


def test_nor_do_prompts_that_the_engine_has_in_another_spelling() -> None:
    gate, _ = fleet(CONTEXT)
    for number in range(8):
        blocks = tuple(range(1_000 * number, 1_000 * number + 600))
        lease = gate.choose(ask(96_000, blocks=blocks, block_tokens=160.0), 0.0)
        lease.first_token(0.1)
        lease.settle(96_000, 95_000)
        gate.computed(lease)
        lease.complete(1.0, 1, 96_000)
    assert gate.choose(ask(96_000), 0.0).queued_tokens < 30_000


def test_most_that_are_served_count_in_full() -> None:
    gate, _ = fleet(CONTEXT, CONTEXT)
    for turn in range(60):
        lease = gate.choose(ask(OVER), 0.0)
        if turn % 5 == 0:
            refused(gate, lease)
        else:
            assert lease.queued_tokens == CONTEXT
            served(gate, lease)


def test_ordinary_clients_leave_nothing_behind() -> None:
    gate, _ = fleet(131_072)
    for number in range(50):
        served(gate, gate.choose(ask(9_000, client=str(number)), 0.0))
    assert not len(gate.computed_prompts._computed)


def test_what_may_be_cut_is_not_refused() -> None:
    def uncut(path: str = "/v1/completions", **fields: Any) -> bool:
        body = msgspec.json.encode({"model": "m", "prompt": "a", **fields})
        return Reader(TokenEstimator()).read(path, (), body, GENERATION).uncut

    assert uncut()
    assert uncut(truncation="disabled", truncate_prompt_tokens=None)
    assert not uncut(truncate_prompt_tokens=-1)
    assert not uncut(truncate_prompt_tokens=10)
    assert uncut(truncation="auto")
    assert not uncut("/v1/responses", truncation="auto")
    assert uncut("/v1/responses", truncate_prompt_tokens=10)
    assert uncut("/v1/messages", truncation="auto", truncate_prompt_tokens=10)
    assert not uncut("/v1/embeddings")
    assert not uncut("/rerank")


async def test_the_models_tell_their_context() -> None:
    cards = b'{"id":"m","max_model_len":8},{"id":"n","max_model_len":9},{"id":"l"}'
    cards += b',{"id":"o","max_model_len":"x"}'
    _, contexts = await read_models(b'{"data":[' + cards + b"]}")
    assert contexts == {"m": 8, "n": 9, None: 9}
    assert (await read_models(b'{"data":[{"id":"m"}]}'))[1] == {}


def test_a_prompt_is_too_long_for_a_pool_exactly_if_it_would_be_refused_there() -> None:
    """Also for a client whose prompts of that size were computed."""
    gate, backends = fleet(CONTEXT)

    def is_refused(tokens: int) -> bool:
        too_long = gate.computed_prompts.is_too_long(ask(tokens), backends)
        if too_long:
            with pytest.raises(OverContext):
                gate.choose(ask(tokens), 0.0)
        else:
            gate.choose(ask(tokens), 0.0).end(0.0)
        return too_long

    assert [is_refused(times * CONTEXT) for times in (1, 2, 5)] == [False, False, True]
    assert not gate.computed_prompts.is_too_long(ask(5 * CONTEXT, uncut=False), backends)
    for _ in range(10):
        served(gate, gate.choose(ask(2 * CONTEXT), 0.0))
    assert not is_refused(5 * CONTEXT)


def test_lists_of_whoever_had_such_lists_computed_are_too_long_for_none() -> None:
    gate, backends = fleet(CONTEXT)
    lists = ask(4 * 5 * CONTEXT, prompts=4)
    assert gate.computed_prompts.is_too_long(lists, backends)
    for _ in range(10):
        served(gate, gate.choose(ask(4 * 2 * CONTEXT, prompts=4), 0.0))
    assert not gate.computed_prompts.is_too_long(lists, backends)
    gate.choose(lists, 0.0).end(0.0)
