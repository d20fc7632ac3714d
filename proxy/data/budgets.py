"""The budgets of tenants before their requests, and what each request took at its end.

A tenant without limits costs a look into a dictionary.
"""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Final

from penstock.balancing.ask import Ask
from penstock.balancing.budget import Bucket, Budget, Charge, Limits, OverBudget
from penstock.balancing.lease import Lease
from penstock.conf.settings import Settings
from penstock.conf.tenants import TenantLimitSettings
from penstock.proxy.data.refusals import PRIORITY
from penstock.proxy.errors.client import ModelNotFound, OverLimit, RequestTimeout
from penstock.proxy.errors.own import RateLimited
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.telemetry.record import Record
from penstock.proxy.wire.header_fields import Headers

# An estimate of a prompt may be off by a third (bench/history/2026-11.md).
ESTIMATE_OFF: Final = 1.5
# What an answer is charged beforehand, unless its client allows less or longer ones are usual.
ANSWER_TOKENS: Final = 1_024.0
# The longest answer of a model whose context is unknown, if its request sets no limit.
LONGEST_TOKENS: Final = 32_768
# The failure of an attempt whose client allowed no more time.
GIVEN_UP: Final = "client_timeout"
# The status of a request whose client left before its answer began, as in nginx.
LEFT: Final = 499


class TenantBudget:
    """One tenant's budget, and what it may ask for at once."""

    def __init__(self, limits: TenantLimitSettings, now_s: float) -> None:
        self.limits = limits
        self.budget = Budget(_amounts(limits), now_s)

    def follow(self, limits: TenantLimitSettings, now_s: float) -> None:
        """A reload: what was used stays used."""
        self.limits = limits
        self.budget.follow(_amounts(limits), now_s)

    def charge(self, ask: Ask, now_s: float) -> Charge:
        """Charge a request beforehand. Raises OverBudget, OverLimit and ModelNotFound."""
        self._allow(ask)
        return self.budget.reserve(_most(ask), now_s)

    def check(self, ask: Ask, now_s: float) -> None:
        """Raise what `charge` would. Charges nothing."""
        self._allow(ask)
        self.budget.check(_most(ask), now_s)

    def _allow(self, ask: Ask) -> None:
        """Whether its tenant may ask for so much at all. Raises OverLimit and ModelNotFound."""
        limits = self.limits
        model = ask.named if ask.first_pool else ask.model
        if limits.models and ask.limited and model not in limits.models:
            raise ModelNotFound(model)  # also without a model: the default one may be any
        if limits.prompt_tokens is not None and ask.engine:
            off = 1.0 if ask.counted else ESTIMATE_OFF
            if ask.prompt_tokens > off * limits.prompt_tokens:
                raise OverLimit(f"This key takes prompts of {limits.prompt_tokens} tokens at most.")
        if limits.max_tokens is not None and ask.generates:
            most = (ask.max_tokens or limits.max_tokens + 1) * ask.prompts * ask.choices
            if most > limits.max_tokens:
                raise OverLimit(
                    "Set max_tokens. For this key max_tokens times the number of choices may be at"
                    f" most {limits.max_tokens}.",
                    param="max_tokens",
                )


class Budgets:
    """Those of all tenants that have limits, by name."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.tenants: dict[str, TenantBudget] = {}

    def follow(self, settings: Settings, now_s: float) -> None:
        """Take the limits of a configuration."""
        limits = {each.name: each.limits for each in settings.tenants}
        for name in list(self.tenants):
            if name not in limits:
                del self.tenants[name]
        for name, wanted in limits.items():
            if name in self.tenants:  # also one whose limits are taken away: what runs is counted
                self.tenants[name].follow(wanted, now_s)
            elif wanted != _NONE:
                self.tenants[name] = TenantBudget(wanted, now_s)

    def models_of(self, tenant: str) -> Collection[str]:
        """The models that a tenant may ask for. Empty: all."""
        found = self.tenants.get(tenant)
        return found.limits.models if found is not None else ()

    def glance(self, tenant: str, now_s: float) -> None:
        """Refuse by the head what has no budget at all. Raises RateLimited."""
        found = self.tenants.get(tenant)
        if found is not None:
            try:
                found.budget.check(1.0, now_s)
            except OverBudget as over:
                raise self._refused(tenant, over) from None

    def charge(self, ask: Ask, now_s: float) -> Charge | None:
        """Charge its tenant beforehand. None: it has no limits. Raises RateLimited, OverLimit and
        ModelNotFound."""
        found = self.tenants.get(ask.tenant)
        if found is None:
            return None
        try:
            return found.charge(ask, now_s)
        except OverBudget as over:
            raise self._refused(ask.tenant, over) from None

    def check(self, ask: Ask, now_s: float) -> None:
        """Raise what `charge` would. Charges and counts nothing."""
        found = self.tenants.get(ask.tenant)
        if found is not None and ask.limited:
            try:
                found.check(ask, now_s)
            except OverBudget as over:
                raise RateLimited(over.limit, over.allowed, over.wait_s) from None

    def headers(self, tenant: str, now_s: float, *, anthropic: bool) -> Headers:
        """What is left, of the budget with the least left for requests and for tokens."""
        found = self.tenants.get(tenant)
        if found is None:
            return []
        told: Headers = []
        for kind, buckets in (("requests", found.budget.requests), ("tokens", found.budget.tokens)):
            if buckets:
                tightest = min(buckets.values(), key=lambda each: each.level(now_s))
                told += _told(kind, tightest, now_s, anthropic=anthropic)
        return told

    def _refused(self, tenant: str, over: OverBudget) -> RateLimited:
        self._metrics.shed.add("budget", PRIORITY)
        self._metrics.rate_limited.add(tenant)
        return RateLimited(over.limit, over.allowed, over.wait_s)


_NONE: Final = TenantLimitSettings()


def taken(ask: Ask, record: Record, lease: Lease | None) -> tuple[int, int, int]:
    """What a request took in the end: 1 if it was served, 0 if not, and its tokens.

    These are the prompt tokens that were not cached, and all that were generated, as the backend
    counted. If it gave no final count: the prompt, and the tokens that came (`Relay.made_tokens`).
    What came of a plain answer may not have been seen: it is what the engine had time for. Without
    an answer nobody pays. What needs no engine costs nothing: a stored response tells again what it
    took when it was made. `lease`: of the last attempt, so that a request which was tried twice
    pays once.
    """
    if lease is None or not ask.engine:
        return 0, 0, 0
    usage = record.usage
    if usage is not None:
        cached = usage.cached_tokens or 0
        return 1, max(0, usage.prompt_tokens - cached), usage.completion_tokens
    # Only a count tells what of it was cached: what should be is a guess that clients can mislead.
    prompt = lease.ask.prompt_tokens
    # An attempt that has failed takes nothing, unless its first token had come.
    failure = record.tries[-1].failure
    failed = failure not in ("", GIVEN_UP)
    given_up = record.status in (LEFT, RequestTimeout.status) and record.sent_s and not failed
    # A stream that is held has a status below 400 before any backend has answered, and so has one
    # that is nothing but an error.
    status = max(record.status, record.tries[-1].status)
    if given_up or lease.first_token_s is not None or (status < 400 and not failed):
        made_tokens = record.made_tokens
        if not made_tokens or not (record.streamed or record.whole):
            # The engine had made all of a plain answer before its first byte came.
            unseen_tokens = lease.unseen_tokens(lease.first_token_s or record.ended_s)
            made_tokens = max(made_tokens, round(unseen_tokens))
        return 1, prompt, made_tokens
    return int(400 <= status < 500 and status not in (LEFT, 408, 429)), 0, 0


def _most(ask: Ask) -> float:
    if not ask.engine:
        return 0.0
    if not ask.generates:
        return ask.prompt_tokens
    each = max(ANSWER_TOKENS, ask.output_tokens)  # it may become longer: its client decides that
    if ask.max_tokens is not None:
        each = min(each, ask.max_tokens)
    return ask.prompt_tokens + each * ask.prompts * ask.choices


def longest(lease: Lease) -> int:
    """The most tokens that an answer may have: those of its limit, or what the context leaves."""
    ask, most = lease.ask, lease.ask.max_tokens
    context = lease.backend.context_tokens(ask.model)
    left = max(0, context - ask.prompt_tokens) if context else most or LONGEST_TOKENS
    most = left if most is None else min(most, left)
    return most * ask.prompts * ask.choices


def _amounts(limits: TenantLimitSettings) -> Limits:
    return Limits(
        requests_per_minute=limits.requests_per_minute,
        requests_per_day=limits.requests_per_day,
        tokens_per_minute=limits.tokens_per_minute,
        tokens_per_day=limits.tokens_per_day,
        concurrent=limits.concurrent,
    )


def _told(kind: str, bucket: Bucket, now_s: float, *, anthropic: bool) -> Headers:
    """The three headers of one kind, as OpenAI or Anthropic have them."""
    limit, left = b"%d" % bucket.limit, b"%d" % max(0, int(bucket.level(now_s)))
    full_s = bucket.wait_s(bucket.limit, now_s)
    if anthropic:
        name = f"anthropic-ratelimit-{kind}-".encode()
        at = datetime.now(UTC) + timedelta(seconds=full_s)
        reset = at.strftime("%Y-%m-%dT%H:%M:%SZ").encode()
        return [(name + b"limit", limit), (name + b"remaining", left), (name + b"reset", reset)]
    return [
        (f"x-ratelimit-limit-{kind}".encode(), limit),
        (f"x-ratelimit-remaining-{kind}".encode(), left),
        (f"x-ratelimit-reset-{kind}".encode(), duration(full_s).encode()),
    ]


def duration(seconds: float) -> str:
    """As OpenAI writes it: 12ms, 1s, 6m0s, 1h2m3s."""
    if seconds < 1.0:
        return f"{round(seconds * 1000)}ms"
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
