"""How much of what a backend's cache should hold was really found there, by client.

Our index of the cache does not know what other traffic displaced, nor whether prefix caching is on.
The backend reports it: each answer tells how much of its prompt was found (`cached_tokens`) if vLLM
runs with `--enable-prompt-tokens-details`. The engine's metrics tell the total of all prompts. It
is divided between the prompts that had their first token since the last report.

Some prompts are never found though they look as if they should be (the same text under another chat
template). They must not affect the expectation for others. So each client has rates of its own, and
within a client each kind of prompt. The last expected block decides the kind. So a text that is
sent again and again has one kind, and a conversation that goes on passes through all of them.
"""

from typing import Final

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
# Awaited tokens are estimates, counted ones are the engine's. They may differ by this factor.
AWAITED_OFF: Final = 2
# The part of the spare hits that is kept at each report. With a report every 2 s, 40 % are left
# after a minute.
SPARE_KEPT: Final = 0.97
# More kinds are steadier against texts that are never found. Fewer learn sooner from each other.
KINDS: Final = 16
# The clients that are remembered, up to 3 KB each. The one that reported longest ago goes.
CLIENTS_MAX: Final = 256

Kind = tuple[str, int]  # the client, and the number of the kind


class _Rate:
    """`share`: what was found of the expected tokens of one kind. `ratio`: what to count on."""

    __slots__ = ("_expected", "_found", "ratio", "share")

    def __init__(self) -> None:
        self._expected = self._found = PRIOR_TOKENS
        self.ratio = self.share = 1.0

    def observe(self, expected_tokens: float, found_tokens: float) -> None:
        if expected_tokens > REPORT_TOKENS_MAX:
            found_tokens *= REPORT_TOKENS_MAX / expected_tokens
            expected_tokens = REPORT_TOKENS_MAX
        # More than expected does not make up for other shortfalls: it is other text.
        found_tokens = max(0.0, min(found_tokens, expected_tokens))
        self._expected = self._expected * FADE + expected_tokens
        self._found = self._found * FADE + found_tokens
        self.share = self._found / self._expected
        self.ratio = 1.0 if self.share >= ENOUGH else self.share


class HitRates:
    """The rates of one backend. `whole`: all that was expected is found, for all kinds."""

    __slots__ = ("_clients", "_due", "_expected", "_lacking", "_left", "_spare", "_told", "whole")

    def __init__(self) -> None:
        self._clients: dict[str, dict[int, _Rate]] = {}
        self._lacking = 0  # kinds with a ratio below 1
        self.whole = True
        # Since the last report of the metrics: expected tokens of prompts with a first token, the
        # kinds whose answers told what was found, and what they told beyond what was expected.
        self._expected: dict[Kind, int] = {}
        self._told: set[Kind] = set()
        self._due = 0.0
        # For prompts without a first token. An engine counts a hit when it begins with a prompt,
        # which is a report or more before the first token if the prompt is long.
        self._left = 0.0
        # Nobody's. Answers may tell them yet.
        self._spare = 0.0

    @property
    def ratio(self) -> float:
        """The usual share to count on: the median of the clients."""
        return _middle([_usual(kinds) for kinds in self._clients.values()])

    def of(self, kind: Kind) -> float:
        """The share of the expected tokens to count on for this kind, 0 to 1."""
        kinds = self._clients.get(kind[0])
        if kinds is None:  # one client does not speak for all
            return self.ratio if len(self._clients) > 1 else 1.0
        known = kinds.get(kind[1])
        return known.ratio if known is not None else _usual(kinds)

    def begun(self, kind: Kind, expected_tokens: int) -> None:
        """A prompt has its first token. So the engine's metrics have its hits."""
        if kind in self._expected or len(self._expected) < CLIENTS_MAX:
            self._expected[kind] = self._expected.get(kind, 0) + expected_tokens

    def told(self, kind: Kind, expected_tokens: int, found_tokens: int) -> None:
        """An answer tells what was found of its prompt."""
        if expected_tokens:
            self._observe(kind, expected_tokens, found_tokens)
            self._told.add(kind)

    def told_beyond(self, found_tokens: int) -> None:
        """An answer reports `found_tokens` hits beyond the expected ones."""
        self._due += found_tokens

    def take(self, found_tokens: int, awaited_tokens: int) -> None:
        """The engine's metrics counted `found_tokens` hits since the last report.

        `awaited_tokens`: expected of prompts without a first token.
        """
        # Hits that nobody expected were perhaps counted in an earlier report.
        spare = min(self._spare, self._due)
        pool = max(0.0, self._left + found_tokens - (self._due - spare))
        if self._expected:
            pool -= self._divide(pool)
        self._left = min(pool, AWAITED_OFF * awaited_tokens)
        self._spare = SPARE_KEPT * (self._spare - spare) + pool - self._left
        self.skip()

    def skip(self) -> None:
        """A report came that does not tell what was found since the last one."""
        self._expected = {}
        self._told = set()
        self._due = 0.0

    def _divide(self, found_tokens: float) -> float:
        """Divide the found tokens between the kinds. Returns how many were divided.

        Assume that each kind goes on as before. Kinds that lacked more so far get more of a
        surplus. They also bear more of a lack, so that kinds that are never found cost the others
        nothing.
        """
        shares = {kind: self._share(kind) for kind in self._expected}
        lacked = {each: tokens * (1.0 - shares[each]) for each, tokens in self._expected.items()}
        lacking, total = sum(lacked.values()), sum(self._expected.values())
        likely = total - lacking
        more = min(1.0, max(0.0, found_tokens - likely) / lacking) if lacking else 0.0
        lack = max(0.0, likely - found_tokens)
        left = lacking + LACKS * total
        for kind in sorted(shares, key=shares.__getitem__):  # what one cannot lack, the next do
            tokens = self._expected[kind]
            part = lacked[kind] + LACKS * tokens
            missed = min(tokens - lacked[kind], lack * part / left)
            lack -= missed
            left -= part
            if kind not in self._told:
                found = tokens - lacked[kind] - missed + lacked[kind] * more
                self._observe(kind, tokens, found)
        return min(found_tokens, likely + lacking * more)

    def _share(self, kind: Kind) -> float:
        known = self._clients.get(kind[0], {}).get(kind[1])
        return known.share if known is not None else 1.0

    def _observe(self, kind: Kind, expected_tokens: float, found_tokens: float) -> None:
        client, number = kind
        kinds = self._clients.pop(client, None) or {}
        self._clients[client] = kinds
        known = kinds.setdefault(number, _Rate())
        before = known.ratio
        known.observe(expected_tokens, found_tokens)
        self._lacking += (known.ratio < 1.0) - (before < 1.0)
        if len(self._clients) > CLIENTS_MAX:
            gone = self._clients.pop(next(iter(self._clients)))
            self._lacking -= sum([each.ratio < 1.0 for each in gone.values()])
        self.whole = not self._lacking


def _usual(kinds: dict[int, _Rate]) -> float:
    return _middle([each.ratio for each in kinds.values()])


def _middle(ratios: list[float]) -> float:
    """The median, the upper one of two. 1.0 of none."""
    return sorted(ratios)[len(ratios) // 2] if ratios else 1.0
