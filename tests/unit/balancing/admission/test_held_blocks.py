"""What running streams have in common is counted once, whatever the order of their ends."""

from random import Random

import pytest

from penstock.balancing.admission.held_blocks import STRIDE, HeldBlocks
from penstock.balancing.ask import Ask


def ask(*blocks: int, block_tokens: float = 100.0, text_blocks: int = 10_000) -> Ask:
    """A prompt of these blocks, and of a rest that fills none."""
    return Ask(
        "/",
        prompt_tokens=int(len(blocks) * block_tokens) + 50,
        blocks=blocks,
        block_tokens=block_tokens,
        text_blocks=text_blocks,
    )


def prompt(common: int, own: int, number: int = 1) -> Ask:
    """So many blocks that others have, too, and so many of its own."""
    return ask(*range(common), *range(1_000 * number, 1_000 * number + own))


def test_the_first_with_a_beginning_shares_nothing_and_the_second_all_of_it() -> None:
    held = HeldBlocks()
    held.add(prompt(8, 4, 1))
    assert held.shared_tokens == 0.0
    assert held.tokens_of(prompt(8, 4, 2)) == 800.0
    held.add(prompt(8, 4, 2))
    assert held.shared_tokens == 800.0
    held.remove(prompt(8, 4, 1))
    assert held.shared_tokens == 0.0
    assert held.tokens_of(prompt(8, 4, 3)) == 800.0


def test_a_beginning_counts_up_to_the_last_counted_block() -> None:
    held = HeldBlocks()
    held.add(prompt(2 * STRIDE + 1, 8, 1))
    assert held.tokens_of(prompt(2 * STRIDE + 1, 8, 2)) == 2 * STRIDE * 100.0


def test_nobody_makes_the_prompts_of_others_look_smaller() -> None:
    """The same text, which one client has estimated at ten times its tokens."""
    held = HeldBlocks()
    held.add(ask(*range(8), block_tokens=1_000.0))
    assert held.tokens_of(prompt(8, 4)) == 800.0
    held.add(prompt(8, 4))
    assert held.shared_tokens <= 8_800.0 - 800.0


def test_the_same_prompt_needs_its_last_token_at_least() -> None:
    held = HeldBlocks()
    same = Ask("/", prompt_tokens=800, blocks=tuple(range(8)), block_tokens=100.0)
    held.add(same)
    assert held.tokens_of(same) == 799.0


def test_blocks_behind_the_first_image_are_not_counted() -> None:
    held = HeldBlocks()
    held.add(ask(*range(16), text_blocks=8))
    assert held.tokens_of(ask(*range(16))) == 800.0
    assert len(held) == 2


@pytest.mark.parametrize("seed", range(20))
def test_in_any_order_nothing_is_left(seed: int) -> None:
    rng, held, open_ = Random(seed), HeldBlocks(), list[Ask]()
    for number in range(200):
        if open_ and rng.random() < 0.5:
            held.remove(open_.pop(rng.randrange(len(open_))))
        else:
            common, tokens = rng.choice([0, 4, 8, 12]), rng.choice([90.0, 100.0, 130.0])
            own = range(1_000 * number, 1_000 * number + 4)
            open_.append(ask(*range(common), *own, block_tokens=tokens))
            held.add(open_[-1])
        assert held.shared_tokens >= -1e-6
        assert held.shared_tokens <= sum(each.prompt_tokens for each in open_)
        held_once = {block for each in open_ for block in each.blocks[STRIDE - 1 :: STRIDE]}
        assert len(held) == len(held_once)
    for each in open_:
        held.remove(each)
    assert held.shared_tokens == 0.0
    assert not len(held)
