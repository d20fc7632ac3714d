"""Which class a request has, for whom it is counted while it waits, and how long it may wait.

A client is believed about its own request as far as the configuration grants. It may always ask for
a lower class. A higher one it gets only if its tenant has that class, or if clients are trusted.
What it may not have is not an error: it gets its own class, and the answer tells which.
"""

from typing import Final

from penstock.balancing.admission.admission import Rules
from penstock.balancing.admission.degradation import Step
from penstock.conf.settings import Settings
from penstock.proxy.wire.heads import RequestHead

ASKED: Final = b"x-penstock-priority"
# Clients without a key share 256 queues, by address. No name of a tenant begins so.
_QUEUES: Final = [f"\0{number}" for number in range(256)]


class ServiceClasses:
    """The classes of one configuration."""

    __slots__ = (
        "_degradable",
        "_of_others",
        "_of_tenants",
        "_ranks",
        "_trusting",
        "default",
        "max_wait_s",
        "names",
        "reserves",
        "rules",
        "steps",
    )

    def __init__(self, settings: Settings) -> None:
        admission = settings.admission
        classes = admission.classes
        self.names = [each.name for each in classes]
        self.max_wait_s = [each.max_wait_s for each in classes]
        self._ranks = {each.name.encode(): rank for rank, each in enumerate(classes)}
        self.default = self.names.index(admission.default_class)
        # By class: the share of each KV cache that it leaves to higher ones.
        self.reserves = [
            admission.reserve if rank > self.default else 0.0 for rank in range(len(classes))
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
            holds=admission.enabled,
            classes=tuple(self.names),
            shares=tuple([each.share_min for each in classes]),
            weights={tenant.name: tenant.weight for tenant in settings.tenants},
        )

        self.steps = tuple(
            [
                Step(
                    self.names.index(each.service_class),
                    each.pressure,
                    each.max_tokens,
                    each.prompt_tokens,
                )
                for each in admission.degrade
            ]
        )
        # Where there are tenants, those that the steps are for.
        self._degradable: frozenset[str] | None = None
        if settings.tenants:
            self._degradable = frozenset([each.name for each in settings.tenants if each.degrade])

    def may_degrade(self, tenant: str) -> bool:
        """Whether the steps of degradation are for its requests."""
        return self._degradable is None or tenant in self._degradable

    def rank_of(self, head: RequestHead) -> int:
        """The class of a request, 0 is the highest. Its head has the tenant."""
        own, more = self._of_tenants.get(head.tenant, self._of_others)
        asked = head.get(ASKED)
        rank = self._ranks.get(asked, own) if asked is not None else own
        if rank >= own or rank in more or self._trusting:
            return rank
        return own

    def told(self, rank: int) -> tuple[bytes, bytes]:
        """What clients and backends are told of a class: its name, and its priority for vLLM.

        vLLM serves lower priorities first if it is started so. The default class has 0.
        """
        return self.names[rank].encode(), b"%d" % (rank - self.default)


def queue_of(party: str, salt: int) -> str:
    """Whose turns a request without a tenant waits for: those of some addresses.

    `salt` is secret, so nobody chooses addresses that share a queue with a certain one.
    """
    return _QUEUES[hash((salt, party)) % len(_QUEUES)]
