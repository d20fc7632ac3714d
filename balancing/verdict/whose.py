"""Which tenant a verdict names beside what it has used up."""

from typing import Final

from penstock.balancing.verdict.scene import MOST, NEARLY_ALL, Scene

# Who takes the most is named only if it is so many times what the next one takes.
APART: Final = 1.5
# Tokens of about the last minute. With fewer a tenant has hardly been there.
GIVEN_MIN: Final = 100.0


def whose(scene: Scene, *, places: bool = False) -> tuple[str, str]:
    """The tenant to name, and for what: `waits`: it has nearly all that waits, while others are
    served. `takes`: it had most of what engines did, while others wait. `holds`: it has most of
    the requests under way, while others wait. Else empty.

    `places`: what waits, waits for a place. Who holds one for long need take few tokens.
    Who waits and was given less than its even share is no cause.
    """
    now = scene.now
    if not scene.queued_s or not now.waiting_by_tenant:
        return "", ""
    tenant, waiting = max(now.waiting_by_tenant.items(), key=lambda each: each[1])
    # Short requests are seldom there when somebody looks.
    lately = {each for each, tokens in now.given_by_tenant.items() if tokens >= GIVEN_MIN}
    served = now.served_by_tenant.keys() | (lately - now.waiting_by_tenant.keys())
    known = now.waiting_by_tenant.keys() | served
    taken = now.served_by_tenant if places else now.given_by_tenant
    given = {each: float(taken.get(each, 0.0)) for each in known if each}
    total = sum(given.values())
    is_most = tenant and served - {tenant} and waiting >= NEARLY_ALL * now.waiting
    if is_most and given[tenant] * len(given) >= total:
        return tenant, "waits"
    most = max(given, key=given.__getitem__, default="")
    second = max([tokens for each, tokens in given.items() if each != most], default=0.0)
    is_apart = total and len(given) > 1 and now.waiting_by_tenant.get(most, 0) < now.waiting
    takes = is_apart and given[most] >= max(MOST * total, APART * second)
    return (most, "holds" if places else "takes") if takes else ("", "")
