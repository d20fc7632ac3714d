"""The limits that panels draw. They are those of the alert rules: an alert begins at the line."""

import re
from typing import Final

from penstock.balancing.slo.objective import PAIRS, USUAL_S, rate_of
from penstock.proxy.commands.alerts import FLEET

_RULES: Final = {rule.name: rule for rule in FLEET}
# Of a rule's comparisons the first is its limit. Others say how many requests it needs.
_COMPARED: Final = re.compile(r" [<>]=? ([\d.]+)")
# The burn rates of budgets of 30 days, where no share is too small for them.
BURN_RATES: Final = {pair.long: rate_of(pair, 0.999, USUAL_S) for pair in PAIRS}


def limit(alert: str) -> float:
    """What an alert compares with. Raises KeyError for an unknown alert."""
    found = _COMPARED.search(_RULES[alert].expr)
    assert found is not None, f"{alert} compares with nothing"
    return float(found[1])
