"""What an answer's own counts teach those who estimated them."""

from typing import TYPE_CHECKING, Final

from balancing.ask import Ask
from balancing.lease import TOKENS_AT_ONCE_MAX, Lease
from balancing.tokens import NOTHING
from proxy.dialects.dialect import Usage

if TYPE_CHECKING:
    from proxy.plane import DataPlane


# Of a request's prompt and of each choice: what nobody here has seen may be so much.
UNSEEN_TOKENS_MAX: Final = 32_768


def believable(usage: Usage, ask: Ask, lease: Lease | None, body_bytes: int) -> Usage:
    """The backend's counts, bounded by what went by: nonsense is counted no further than that."""
    seen = lease.generated_tokens if lease is not None else 0
    each = max(UNSEEN_TOKENS_MAX, ask.max_tokens or 0, TOKENS_AT_ONCE_MAX * seen)
    completion_most = max(each * ask.prompts * ask.choices, body_bytes)
    prompt_most = UNSEEN_TOKENS_MAX + TOKENS_AT_ONCE_MAX * ask.prompt_tokens
    if usage.completion_tokens <= completion_most and usage.prompt_tokens <= prompt_most:
        return usage
    prompt_tokens = min(usage.prompt_tokens, prompt_most)
    cached_tokens = usage.cached_tokens
    return Usage(
        prompt_tokens,
        min(usage.completion_tokens, completion_most),
        min(cached_tokens, prompt_tokens) if cached_tokens is not None else None,
    )


def calibrate(
    plane: "DataPlane", ask: Ask, lease: Lease | None, usage: Usage, *, whole: bool
) -> None:
    """Compare what was expected with the backend's own counts and calibrate by them."""
    prompt_tokens = usage.prompt_tokens
    if lease is not None:
        lease.settle(prompt_tokens, usage.cached_tokens)
    if ask.generates and usage.completion_tokens and whole:
        tokens = usage.completion_tokens / (ask.prompts * ask.choices)
        plane.outputs.observe(ask.client, ask.model, ask.path, ask.max_tokens, tokens)
    if not prompt_tokens or ask.measured == NOTHING:
        return
    plane.metrics.estimate_ratio.observe(ask.prompt_tokens / prompt_tokens)
    plane.estimator.observe(
        ask.model, ask.measured, prompt_tokens, ask.media_parts, ask.counted, ask.client
    )
