"""`POST /api/v1/explain`: a choice as JSON. It holds nothing of the prompt itself."""

import msgspec

from penstock.balancing.ask import Ask
from penstock.balancing.explain import Candidate
from penstock.balancing.fields import NO_FIELD
from penstock.balancing.gate import Choice
from penstock.balancing.members import NoObject, members
from penstock.balancing.outline import Steps


class _Given(msgspec.Struct):
    messages: msgspec.Raw = NO_FIELD
    prompt: msgspec.Raw = NO_FIELD
    input: msgspec.Raw = NO_FIELD


_given = msgspec.json.Decoder(_Given)


def path_of(body: bytes) -> Steps[str]:
    """The path that a body was most likely written for. Each path has a key of its own."""
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
    """The request as it was understood, and every candidate with its costs in seconds.

    `policy` is the name of the pool's policy.
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
    part = candidate.part
    return {
        "name": candidate.backend.name,
        "pool": candidate.pool,
        "eligible": not candidate.out,
        "why_not": candidate.out or part.why_not or None,
        "cost_s": round(part.cost_s, 6) if part.cost_s is not None else None,
        "terms": {name: round(term, 6) for name, term in part.terms.items()}
        if part.terms is not None
        else None,
        "cached_tokens": candidate.cached_tokens,
        "to_win": part.to_win or None,
    }
