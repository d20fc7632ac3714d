"""Which class a request has, for whom it is counted while it waits, and how long it may wait.

A client asks for a class by a header, or in the words of its API by `service_tier`. The header
counts first. A client is believed as far as the configuration grants. It may always ask for a
lower class. A higher one it gets only if its tenant has that class, or if clients are trusted.
What it may not have is not an error: it gets its own class, and the answer tells which.
"""

from typing import Final

from penstock.balancing.admission.controller import Rules
from penstock.balancing.admission.degradation import Step
from penstock.conf.settings import Settings

ASKED: Final = b"x-penstock-priority"
# OpenAI's tiers, and `fast`, its other name for `priority`: how many classes above the default
# one, or -1 for the lowest of all. Others ask for none, such as Anthropic's `standard_only`.
_TIERS: Final = {"priority": 1, "fast": 1, "flex": -1, "batch": -1}
# Clients without a key share 256 queues, by address. No name of a tenant begins so.
_QUEUES: Final = [f"\0{number}" for number in range(256)]


class ServiceClasses:
    """The classes of one configuration."""

    def __init__(self, settings: Settings) -> None:
        admission = settings.admission
        classes = admission.classes
        self.names = [each.name for each in classes]
        self.max_wait_s = [each.max_wait_s for each in classes]
        self._ranks = {each.name.encode(): rank for rank, each in enumerate(classes)}
        self.default = self.names.index(admission.default_class)
        self._tiers = {
            tier: max(0, self.default - step) if step > 0 else len(classes) - 1
            for tier, step in _TIERS.items()
        }
        # By class: what clients are told (nothing of the default one), and its priority for vLLM,
        # which serves lower ones first if it is started so. It is told each time: a body may hold
        # another one.
        self.told = [
            (b"" if rank == self.default else name.encode(), b"%d" % (rank - self.default))
            for rank, name in enumerate(self.names)
        ]
        self._of_others: tuple[int, frozenset[int]] = self.default, frozenset()
        self._trusting = admission.trust_clients and not settings.tenants
        # By tenant: the rank of its class, and the ranks of higher ones that it may ask for.
        self._of_tenants: dict[str, tuple[int, frozenset[int]]] = {}
        for tenant in settings.tenants:
            own = self.names.index(tenant.service_class or admission.default_class)
            more = frozenset([self.names.index(name) for name in tenant.classes])
            self._of_tenants[tenant.name] = own, more
        self.rules = Rules(
            enabled=admission.enabled,
            classes=tuple(self.names),
            shares=admission.shares,
            weights={tenant.name: tenant.weight for tenant in settings.tenants},
            park_s=admission.hold_for_backend_s,
        )

        self.steps = tuple(
            [
                Step(
                    self.names.index(each.service_class),
                    each.pressure,
                    each.max_tokens,
                    each.prompt_tokens,
                    each.fall_back,
                )
                for each in admission.degrade
            ]
        )
        # Where there are tenants, those that the steps are for.
        self._degradable: frozenset[str] | None = None
        if settings.tenants:
            self._degradable = frozenset([each.name for each in settings.tenants if each.degrade])

    def may_degrade(self, tenant: str) -> bool:
        return self._degradable is None or tenant in self._degradable

    def rank_of(self, tenant: str, asked: bytes | None, tier: str | None = None) -> int:
        """The class of a request, 0 is the highest.

        `asked`: the class in its header. `tier`: the service tier in its body.
        """
        own, more = self._of_tenants.get(tenant, self._of_others)
        rank = own
        if asked is not None:
            rank = self._ranks.get(asked, own)
        elif tier is not None:
            rank = self._tiers.get(tier, own)
            if _TIERS.get(tier, 0) > 0:
                rank = min(own, rank)
        if rank >= own or rank in more or self._trusting:
            return rank
        return own

    def deadline_of(self, rank: int, patience_s: float) -> tuple[float, bool]:
        """How long it may wait for its first token, and whether its client allows no more.

        `patience_s`: how long that waits.
        """
        return min(patience_s, self.max_wait_s[rank]), patience_s < self.max_wait_s[rank]


def queue_of(party: str, salt: int) -> str:
    """Whose turns a request without a tenant waits for: those of some addresses.

    `salt` is secret, so nobody chooses addresses that share a queue with a certain one.
    """
    return _QUEUES[hash((salt, party)) % len(_QUEUES)]
