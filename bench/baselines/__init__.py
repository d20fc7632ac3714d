"""Rules of other routers, as policies of experiments: our reading of what their authors publish."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

from penstock.bench.baselines.baseline import Baseline
from penstock.bench.baselines.chwbl_tokens import ChwblTokens
from penstock.bench.baselines.dynamo import Dynamo
from penstock.bench.baselines.kv_aware import KvAware
from penstock.bench.baselines.llm_d_sticky import LlmDSticky
from penstock.bench.baselines.lmetric import LMetric
from penstock.bench.baselines.oracle import Oracle
from penstock.bench.baselines.view import View

BASELINES: Final[MappingProxyType[str, Callable[[View], Baseline]]] = MappingProxyType(
    {
        "llm_d_sticky": LlmDSticky,
        "lmetric": LMetric,
        "dynamo": Dynamo,
        "kv_aware": KvAware,
        "chwbl_tokens": ChwblTokens,
        "oracle": Oracle,
    }
)
