"""The families of service levels."""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from penstock.balancing.slo.slo import Slo
from penstock.proxy.telemetry.family_table import FAMILIES

# In place of a pool or a class where an SLO is for all. No name has this character.
ALL: Final = "*"


def slo_families(slos: Iterable[Slo]) -> Iterator[Metric]:
    """`slos`: with their counts and states up to date."""
    compliance, burns, states = (
        GaugeMetricFamily(f"penstock_{name}", FAMILIES[name].text, labels=FAMILIES[name].labels)
        for name in ("slo_compliance_ratio", "slo_burn_rate", "slo_state")
    )
    told = FAMILIES["slo_requests"]
    requests = CounterMetricFamily("penstock_slo_requests", told.text, labels=told.labels)
    for slo in slos:
        for each in slo.objectives:
            labels = [slo.pool or ALL, slo.service_class or ALL, each.goal.name]
            if (share := each.compliance) is not None:
                compliance.add_metric(labels, share)
            for window, rate in each.burn_rates.items():
                burns.add_metric([*labels, window], rate)
            states.add_metric(labels, each.state)
            requests.add_metric([*labels, "good"], each.windows.good)
            requests.add_metric([*labels, "bad"], each.windows.bad)
    yield from (compliance, burns, states, requests)
