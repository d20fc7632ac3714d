"""What an answer's own counts teach those who estimated them."""

from typing import TYPE_CHECKING

from balancing.ask import Ask
from balancing.lease import Lease
from balancing.tokens import NOTHING
from proxy.dialects.dialect import Usage

if TYPE_CHECKING:
    from proxy.plane import DataPlane


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
