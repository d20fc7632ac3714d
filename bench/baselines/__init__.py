"""Rules of other routers, as policies of experiments: our reading of what their authors publish."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

from bench.baselines.baseline import Baseline
from bench.baselines.chwbl_tokens import ChwblTokens
from bench.baselines.dynamo import Dynamo
from bench.baselines.kv_aware import KvAware
from bench.baselines.llm_d_sticky import LlmDSticky
from bench.baselines.lmetric import LMetric
from bench.baselines.oracle import Oracle
from bench.baselines.view import View

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
