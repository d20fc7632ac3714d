"""`POST /api/v1/explain`: a choice as JSON. The prompt itself is nowhere in it."""

from typing import Final

import msgspec

from balancing.ask import Ask
from balancing.explain import Candidate
from balancing.fields import NO_FIELD
from balancing.gate import Choice
from balancing.members import NoObject, members
from balancing.outline import Steps
from balancing.policies.token_cost import Weights

TERMS: Final = tuple(f"{name}_s" for name in Weights._fields)


class _Given(msgspec.Struct):
    messages: msgspec.Raw = NO_FIELD
    prompt: msgspec.Raw = NO_FIELD
    input: msgspec.Raw = NO_FIELD


_given = msgspec.json.Decoder(_Given)


def path_of(body: bytes) -> Steps[str]:
    """The path that a body was most likely written for, by the key that only it has."""
    try:
        given = yield from members(body, _given)
    except NoObject:
        given = _Given()
    if given.messages is NO_FIELD and given.prompt is not NO_FIELD:
        return "/v1/completions"
    if given.messages is NO_FIELD and given.input is not NO_FIELD:
        return "/v1/responses"
    return "/v1/chat/completions"


def render(ask: Ask, choice: Choice, policy: str | None) -> dict[str, object]:
    """What was asked for as it was understood, and every candidate with its costs in seconds.

    `policy` is the name of the pool's.
    """
    return {
        "pool": choice.pool,
        "policy": policy,
        "chosen": choice.chosen,
        "reason": choice.reason,
        "request": {
            "model": ask.model,
            "prompt_tokens": ask.prompt_tokens,
            "expected_output_tokens": round(ask.output_tokens),
            "blocks": len(ask.blocks),
            "session": ask.session is not None,
            "stream": ask.stream,
        },
        "candidates": [_candidate(each) for each in choice.candidates],
    }


def _candidate(candidate: Candidate) -> dict[str, object]:
    cost = candidate.cost
    return {
        "name": candidate.backend.name,
        "pool": candidate.pool,
        "eligible": not candidate.out,
        "why_not": candidate.out or None,
        "cost_s": round(cost.seconds, 6) if cost is not None else None,
        "terms": {name: round(getattr(cost, name), 6) for name in TERMS}
        if cost is not None
        else None,
        "cached_tokens": candidate.cached_tokens,
        "to_win": candidate.to_win or None,
    }
