"""Whether a backend ends answers earlier than its peers do, for one client or for all.

Broken weights or a small `max_new_tokens` make answers that look whole and are short. Such a
backend holds the least load, so it would get nearly every request. Its fault shows in the mean of
many answers, and only where nothing but load decided which backend gave them.

Equal backends must not accuse each other, however much the lengths differ. For n samples with the
true mean m and variance v, the chance that their mean is d too low is at most
exp(-n d^2 / 2(v + m d / 3)) (Bernstein's inequality, for values of at least 0). It holds for any
distribution, also where nearly all answers have one token and a few have thousands. The variance is
only estimated, and there are many comparisons, so the limit is far below what one would need.

Samples of different times cannot be compared: what is usual changes. So a backend that has just
restarted is compared with those that began with it, or when the peers' older samples have faded.
"""

from collections.abc import Sequence
from math import log
from typing import Final

from penstock.balancing.answer_lengths import HALF_S, AnswerLengths, Lengths
from penstock.balancing.backend import Backend

# Brief are answers of less than this part of the peers' mean. Versions of a model differ less.
BRIEF: Final = 1 / 3
# How improbable it must be that chance explains it.
CHANCE: Final = 1e-6
PEERS_MAX: Final = 16
# What began within so many seconds began together. After FADED_S older samples weigh an eighth.
TOGETHER_S: Final = 10.0
FADED_S: Final = 3.0 * HALF_S
# Fewer samples say nothing.
SAMPLES_MIN: Final = 4.0


def is_brief_for(backend: Backend, peers: Sequence[Backend], client: str, now_s: float) -> bool:
    """Whether this client's answers end early there."""
    at_peers = [each.of(client) for each in _comparable(backend, peers, now_s)]
    return _is_brief(backend.lengths.of(client), at_peers)


def is_brief_for_all(backend: Backend, peers: Sequence[Backend], now_s: float) -> bool:
    """Whether answers end early there for two groups of clients, and for more than half of them.

    Each group has one vote, so that no client decides by sending much.
    """
    at_peers = _comparable(backend, peers, now_s)
    votes = [
        _is_brief(own, [each.groups[group] for each in at_peers])
        for group, own in enumerate(backend.lengths.groups)
        if own.samples >= SAMPLES_MIN
    ]
    return sum(votes) > max(1, len(votes) / 2)


def _comparable(backend: Backend, peers: Sequence[Backend], now_s: float) -> list[AnswerLengths]:
    """Peers whose samples are of the same time: enough of many, so that many cost no more."""
    own_s = backend.lengths.began_s
    some = [each.lengths for each in peers[:: len(peers) // PEERS_MAX + 1]]
    return [each for each in some if _of_one_time(own_s, each.began_s, now_s)]


def _of_one_time(own_s: float | None, peers_s: float | None, now_s: float) -> bool:
    if own_s is None or peers_s is None:
        return False
    return abs(own_s - peers_s) <= TOGETHER_S or now_s - max(own_s, peers_s) >= FADED_S


def _is_brief(own: Lengths, at_peers: Sequence[Lengths]) -> bool:
    """Whether the mean is far below that of the half of the peers with the longer answers.

    The other half may be broken too, and has more answers.
    """
    known = sorted([each for each in at_peers if each.samples >= SAMPLES_MIN], key=_mean)
    usual = Lengths()
    for each in known[len(known) // 2 :]:
        usual.add(each)
    if not usual.total or own.mean >= BRIEF * usual.mean:
        return False
    mean, below = usual.mean, usual.mean - own.mean
    variance = max(0.0, usual.squares / usual.samples - mean * mean)
    # The peers' mean is uncertain, too.
    samples = own.samples * usual.samples / (own.samples + usual.samples)
    return samples * below * below > -2.0 * log(CHANCE) * (variance + mean * below / 3.0)


def _mean(lengths: Lengths) -> float:
    return lengths.mean
