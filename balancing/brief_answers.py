"""Which whole answers end much sooner than usual. That is cheap, so it attracts requests.

A server with broken weights, or with an odd limit of tokens, ends each answer after a few tokens
and would get nearly all requests. `odd_refusals` decides whether only one backend does so.
"""

from collections.abc import Sequence
from statistics import median
from typing import Final

from penstock.balancing.backend import Backend
from penstock.balancing.lease import Lease

# Of answers whose lengths vary as usual (a log-normal law with sigma 1) one in ten has less than
# this share of the mean.
SHARE: Final = 1 / 6
# Where fewer tokens are usual, a few are no sign.
TOKENS_MIN: Final = 24.0
# The last twenty answers or so count in a backend's mean.
FADE: Final = 0.95
# One long answer must not make all others look brief.
TOKENS_MAX: Final = 4_096


def is_placed(lease: Lease) -> bool:
    """Whether it went to where its session, its response or its cached text is.

    Such a request says nothing: others like it went there, too.
    """
    ask = lease.ask
    at_home = lease.backend.name == ask.home
    return lease.bound or at_home or 2 * lease.cached_tokens > ask.prompt_tokens


def is_brief(
    backend: Backend, peers: Sequence[Backend], tokens: int, max_tokens: int | None
) -> bool:
    """Whether an answer is brief beside those of the peers. Also notes the answer.

    `max_tokens`: the limit of its client.
    """
    mean = backend.answer_tokens or tokens
    backend.answer_tokens = mean * FADE + min(tokens, TOKENS_MAX) * (1.0 - FADE)
    known = [peer.answer_tokens for peer in peers if peer.answer_tokens]
    if not known:
        return False
    usual = median(known)
    brief = SHARE * usual
    return usual >= TOKENS_MIN and tokens < brief and not (max_tokens and max_tokens < brief)
