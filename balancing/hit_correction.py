"""How much of what a backend's cache should hold was really found there.

Our index of the cache does not know what other traffic displaced, nor whether prefix caching is on.
The backend reports it: each answer tells how much of its prompt was found (`cached_tokens`) if vLLM
runs with `--enable-prompt-tokens-details`. Otherwise its metrics tell the total of all prompts.

Some prompts are never found though they look as if they should be (the same text under another chat
template). They must not affect the expectation for other clients. So each client's reports count
for itself, and within a client by kind. The last expected block decides the kind. So a text that is
sent again and again has one kind, and a conversation that goes on passes through all of them.
"""

from collections.abc import Mapping
from typing import Final

from penstock.balancing.fair_table import FairTable

# Worth a few prompts that were found, so that the first report does not decide.
PRIOR_TOKENS: Final = 20_000.0
# About the last fifty reports of a kind count.
FADE: Final = 0.98
# A smaller shortfall comes from a few prompts that are wholly gone, not from a bit of each. Taken
# off all of them, it cost conversations that fill the caches 1.8 x the time to first token
# (bench/RESULTS.md), because so little of a cached prompt is left to prefill.
ENOUGH: Final = 0.8
# When tokens are missing, a kind that was always found bears this share, per token, of what a kind
# that was never found bears.
LACKS: Final = 0.05
# The most that one report counts: the context length of today's models.
REPORT_TOKENS_MAX: Final = 131_072.0
# More kinds are steadier against texts that are never found. Fewer learn sooner from each other.
KINDS: Final = 64
# A kind with fewer reports is judged by the usual ratio of its client.
REPORTS_MIN: Final = 4
# The usual ratio of a client follows a kind that is not whole once in this many reports.
SUMMED_UP: Final = 8
# The kinds of all clients together, some 150 bytes each.
KINDS_MAX: Final = 1_024

Kind = tuple[str, int]


class HitCorrection:
    """`ratio`: the share of the expected tokens to count on, 0 to 1."""

    __slots__ = ("_expected", "_found", "ratio", "reports")

    def __init__(self) -> None:
        self._expected = self._found = PRIOR_TOKENS
        self.ratio = 1.0
        self.reports = 0

    @property
    def share(self) -> float:
        """The share of the expected tokens that was found."""
        return self._found / self._expected

    def observe(self, expected_tokens: float, found_tokens: float) -> None:
        """Prompts should have had `expected_tokens` in the cache, and `found_tokens` were there.

        More than expected does not make up for other shortfalls: it is other text.
        """
        if expected_tokens > REPORT_TOKENS_MAX:
            found_tokens *= REPORT_TOKENS_MAX / expected_tokens
            expected_tokens = REPORT_TOKENS_MAX
        self._expected = self._expected * FADE + expected_tokens
        self._found = self._found * FADE + max(0.0, min(found_tokens, expected_tokens))
        share = self.share
        self.ratio = 1.0 if share >= ENOUGH else share
        self.reports += 1


class HitCorrections:
    """The corrections of one backend by kind. `ratio`: the usual one. `whole`: all was found."""

    __slots__ = ("_kinds", "_usual", "ratio", "whole")

    def __init__(self) -> None:
        self._kinds: FairTable[HitCorrection] = FairTable(KINDS_MAX)
        self._usual: dict[str, float] = {}  # the usual ratio of each client
        self.ratio = 1.0
        self.whole = True

    def of(self, kind: Kind) -> float:
        """The share of the expected tokens to count on for this kind, 0 to 1."""
        client, number = kind
        known = self._kinds.find(client, number)
        if known is not None and known.reports >= REPORTS_MIN:
            return known.ratio
        usual = self._usual.get(client)
        if usual is not None:
            return usual
        return self.ratio if len(self._usual) > 1 else 1.0  # one client does not speak for all

    def observe(self, kind: Kind, expected_tokens: float, found_tokens: float) -> None:
        """An answer of this kind reported what was found."""
        client, number = kind
        known = self._kinds.find(client, number)
        if known is None:
            known = HitCorrection()
            self._kinds.put(client, number, known)
        before = known.ratio
        known.observe(expected_tokens, found_tokens)
        crossed = (known.ratio < 1.0) != (before < 1.0)
        if crossed or known.reports == 1 or (known.ratio < 1.0 and not known.reports % SUMMED_UP):
            self._sum_up(client)

    def _sum_up(self, client: str) -> None:
        """Update the client's usual ratio after that of a kind has changed."""
        ratios = [each.ratio for each in self._kinds.of(client).values()]
        usual = _middle(ratios)
        if self._usual.get(client) != usual:
            self._usual.pop(client, None)
            self._usual[client] = usual
            if len(self._usual) > KINDS_MAX:
                del self._usual[next(iter(self._usual))]
            self.ratio = _middle(list(self._usual.values()))
        if min(ratios) < 1.0:
            self.whole = False
        elif not self.whole:
            self.whole = all(
                each.ratio == 1.0 for of in self._usual for each in self._kinds.of(of).values()
            )

    def likely(self, expected: Mapping[Kind, int]) -> float:
        """How many of the expected tokens are found if each kind goes on as before."""
        return sum(tokens * self._share(kind) for kind, tokens in expected.items())

    def divide(self, expected: Mapping[Kind, int], found_tokens: float) -> float:
        """Prompts of several kinds were found in part. Divide the found tokens between the kinds.

        Assume that each kind goes on as before. Kinds that lacked more so far get more of a
        surplus. They also bear more of a lack, so that kinds that are never found cost the others
        nothing. Returns how many tokens were divided. The rest belongs to other prompts.
        """
        shares = {kind: self._share(kind) for kind in expected}
        lacked = {kind: tokens * (1.0 - shares[kind]) for kind, tokens in expected.items()}
        lacking = sum(lacked.values())
        total = sum(expected.values()) - lacking
        more = min(1.0, max(0.0, found_tokens - total) / lacking) if lacking else 0.0
        lack = max(0.0, total - found_tokens)
        left = lacking + LACKS * sum(expected.values())
        for kind in sorted(expected, key=shares.__getitem__):  # what one cannot lack, the next do
            tokens = expected[kind]
            likely = tokens - lacked[kind]
            part = lacked[kind] + LACKS * tokens
            missed = min(likely, lack * part / left)
            lack -= missed
            left -= part
            self.observe(kind, tokens, likely - missed + lacked[kind] * more)
        return min(found_tokens, total + lacking * more)

    def _share(self, kind: Kind) -> float:
        """The share of this kind that was found so far."""
        known = self._kinds.find(kind[0], kind[1])
        return known.share if known is not None else 1.0


def _middle(ratios: list[float]) -> float:
    """The median, the upper one of two."""
    return sorted(ratios)[len(ratios) // 2]
