"""How long a prompt may be so that a KV cache never runs over.

Every stream grows by a token in each step until it ends, then gives back all that it held. So the
most that is held at once comes just before an end. Held tokens at such a moment are those of all
that end later, and one token a step for each of them until then.
"""

from collections.abc import Iterable

Stream = tuple[float, float]  # tokens still to come, tokens held now


def spare_tokens(streams: Iterable[Stream], new_left: float, capacity: float) -> float:
    """The longest prompt that fits, with an answer of `new_left` tokens.

    What runs over without it, after its end, is no reason to refuse it.
    """
    total, number, spare, beside = 0.0, 0, capacity, False
    for left, held in sorted(streams, reverse=True):
        if not beside and left < new_left:
            beside = True  # from here on it is there when one of them ends
            number += 1
            spare = min(spare, capacity - total - number * new_left)
        total += held
        number += 1
        if beside:
            spare = min(spare, capacity - total - number * left)
    if not beside:
        spare = min(spare, capacity - total - (number + 1) * new_left)
    return spare


def steps_until(ends: Iterable[tuple[float, float]], tokens: float) -> float:
    """How many steps until streams have ended that give back so many tokens.

    `ends`: of each stream, in how many steps it ends, and what it gives back then.
    """
    back = last = 0.0
    for steps, given in sorted(ends):
        if back >= tokens:
            break
        back += given
        last = steps
    return last
