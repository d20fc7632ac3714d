"""Which tenant a verdict names beside what it has used up."""

from typing import Final

from penstock.balancing.verdict.scene import MOST, NEARLY_ALL, Scene

# Who takes the most is named only if it is so many times what the next one takes.
AHEAD: Final = 1.5
# Tokens of about the last minute. With fewer a tenant has hardly been there.
GIVEN_MIN: Final = 100.0


def whose(scene: Scene, *, by_requests: bool = False) -> tuple[str, str]:
    """The tenant to name, and for what: `waits`: it has nearly all that waits, while others are
    served. `takes`: it had most of what engines did, while others wait. `holds`: it has most of
    the requests under way, while others wait. Else empty.

    `by_requests`: what waits, waits for a place. A tenant may hold places for long and take few
    tokens. Who waits and has less than its even share is no cause.
    """
    now = scene.now
    if not scene.queued_s or not now.waiting_by_tenant:
        return "", ""
    tenant, waiting = max(now.waiting_by_tenant.items(), key=lambda each: each[1])
    # Short requests are seldom there when somebody looks.
    lately = {each for each, tokens in now.given_by_tenant.items() if tokens >= GIVEN_MIN}
    served = now.served_by_tenant.keys() | (lately - now.waiting_by_tenant.keys())
    shares = now.served_by_tenant if by_requests else now.given_by_tenant
    known = now.waiting_by_tenant.keys() | (shares.keys() if by_requests else served)
    has = {each: float(shares.get(each, 0.0)) for each in known if each}
    total = sum(has.values())
    most = max(has, key=has.__getitem__, default="")
    second = max([share for each, share in has.items() if each != most], default=0.0)
    others_wait = total and len(has) > 1 and now.waiting_by_tenant.get(most, 0) < now.waiting
    named = others_wait and has[most] >= max(MOST * total, AHEAD * second)
    is_most = tenant and served - {tenant} and waiting >= NEARLY_ALL * now.waiting
    if is_most and has[tenant] * len(has) >= total and (most == tenant or not named):
        return tenant, "waits"
    return (most, "holds" if by_requests else "takes") if named else ("", "")
