"""Teaches the estimators from the token counts that an answer reports."""

from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend
from penstock.balancing.computed_prompts import LARGE_TOKENS
from penstock.balancing.lease import TOKENS_AT_ONCE_MAX, Lease
from penstock.balancing.tokens import NOTHING
from penstock.proxy.data.budgets import longest
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.relay import Relay
from penstock.proxy.data.request import Request
from penstock.proxy.dialects.dialect import Usage

# More tokens than penstock saw itself are believed up to this many, for the prompt and for each
# choice.
UNSEEN_TOKENS_MAX: Final = 32_768
# The limit for a context that a backend reports, and for what it adds to a stored response: earlier
# responses, conversations, tool calls. No model has a longer context.
CONTEXT_TOKENS_MAX: Final = 10_485_760


def believable(usage: Usage, ask: Ask, lease: Lease | None, body_bytes: int) -> Usage:
    """The backend's counts, cut to what is possible. An absurd count does no more harm."""
    if max(usage.prompt_tokens, usage.completion_tokens) <= UNSEEN_TOKENS_MAX:
        return usage
    seen = lease.generated_tokens if lease is not None else 0
    context = lease.backend.context_tokens(ask.model) if lease is not None else 0
    each = max(UNSEEN_TOKENS_MAX, ask.max_tokens or context, TOKENS_AT_ONCE_MAX * seen)
    completion_most = max(each * ask.prompts * ask.choices, body_bytes)
    completion_tokens = min(usage.completion_tokens, completion_most)
    prompt_tokens = usage.prompt_tokens
    if prompt_tokens > _prompt_seen_most(ask):
        prompt_tokens = min(prompt_tokens, max(_prompt_seen_most(ask), _prompt_most(ask, lease)))
    if completion_tokens == usage.completion_tokens and prompt_tokens == usage.prompt_tokens:
        return usage
    cached_tokens = usage.cached_tokens
    return Usage(
        prompt_tokens,
        completion_tokens,
        min(cached_tokens, prompt_tokens) if cached_tokens is not None else None,
    )


def _prompt_seen_most(ask: Ask) -> int:
    """The most prompt tokens that the text seen here can explain."""
    return UNSEEN_TOKENS_MAX + TOKENS_AT_ONCE_MAX * ask.prompt_tokens


def _prompt_most(ask: Ask, lease: Lease | None) -> int:
    """The most that an engine can take, if that is known or penstock did not see most of it."""
    if ask.response_id is not None or ask.path == "/v1/responses":
        return CONTEXT_TOKENS_MAX
    context = lease.backend.context_tokens(ask.model) if lease is not None else 0
    return min(context, CONTEXT_TOKENS_MAX) * ask.prompts


def remember(plane: DataPlane, request: Request, backend: Backend, response_id: str) -> None:
    """Remember which backend stores a response: later requests for it go there.

    How long it becomes is an estimate, until the backend has counted it.
    """
    ask, now_s, answer = request.ask, plane.now(), request.ask.output_tokens
    if ask.max_tokens is not None:
        answer = min(answer, ask.max_tokens)
    tokens = ask.prompt_tokens + round(answer)
    owners, tenant = plane.gate.owners, ask.tenant
    if not ask.engine:  # it is only asked for, and as long as before
        tokens = owners.tokens_of(response_id, tenant, now_s)
    if owners.put(response_id, backend.name, now_s, tenant, ask.client, tokens) and ask.engine:
        request.stores = response_id


def learn(plane: DataPlane, request: Request, lease: Lease, relay: Relay, now_s: float) -> None:
    """Learn from an answer, before its lease ends, and keep its counts in the record."""
    ask = request.ask
    if request.paused and ask.stream and not relay.over:
        # Its engine has gone on while its client read nothing.
        stalled_tokens = round(lease.tokens_in(now_s - relay.last_byte_s))
        lease.tokens(max(0, min(stalled_tokens, longest(lease) - lease.generated_tokens)))
    told = relay.counts
    if told is not None:
        usage = believable(told, ask, lease, request.answer.body_bytes)
        request.record.usage = usage
        if request.stores:
            tokens = usage.prompt_tokens + usage.completion_tokens
            plane.gate.owners.count(request.stores, ask.tenant, tokens)
        if relay.served and usage is told:
            calibrate(plane, ask, lease, usage, whole=request.answer.finished)
    elif ask.stream:  # an event may hold several tokens
        lease.tokens(max(0, relay.made_tokens - lease.generated_tokens))
    if ask.prompt_tokens >= LARGE_TOKENS and lease.first_token_s is not None:
        plane.gate.computed(lease)


def calibrate(plane: DataPlane, ask: Ask, lease: Lease, usage: Usage, *, whole: bool) -> None:
    """Compare the estimates with the backend's own counts and calibrate them.

    Nothing is learnt when the text seen here does not explain the length of the prompt.
    """
    prompt_tokens = usage.prompt_tokens
    if prompt_tokens > _prompt_seen_most(ask):
        return
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
