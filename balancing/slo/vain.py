"""When a client that left with nothing has waited in vain, so that it counts as not served.

Clients have limits of their own. In an outage they all leave before penstock's limits end their
requests. Then nobody would be at fault, and nothing would be told. But clients also leave for
reasons of their own, and nobody may use up an error budget by that. So it counts only while the
whole pool begins no answer, and after a time in which a sound engine begins this one.
"""

from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.speed.estimates import prior_decode_s, prior_prefill_s, work_of

# After this time at the earliest, if no target for first tokens is shorter.
VAIN_S: Final = 2.0
# A sound engine may be slower than the first guesses of speeds, and has other prompts, too.
SLOWER: Final = 2.0


def begins_within_s(ask: Ask) -> float:
    """A time in which an engine has begun to answer, by the first guesses of speeds.

    Measured speeds would not do: an engine that hangs is measured as slow.
    """
    seconds = prior_prefill_s(
        work_of(ask.prompt_tokens, ask.prompt_tokens / ask.prompts, ask.prompts)
    )
    if ask.generates and not ask.stream:  # a plain answer begins when it is computed
        seconds += (ask.max_tokens or ask.output_tokens) * prior_decode_s(0.0)
    return SLOWER * seconds
