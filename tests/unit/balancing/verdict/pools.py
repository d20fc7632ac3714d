"""Pools as a verdict sees them: seconds of facts, one look a second."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from penstock.balancing.admission.queued_request import WaitReason
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.verdict.cause import Finding
from penstock.balancing.verdict.facts import BackendFacts, PoolFacts
from penstock.balancing.verdict.rules import find
from penstock.balancing.verdict.window import Window

# An engine that decodes 10 streams with 10 ms a token.
REPORT = EngineReport(0.0, running=10, kv_usage=0.4)
BUSY = BackendFacts("a", streams=10, sequences=10, step_s=0.01, held_share=0.4, report=REPORT)
REPORTED = {each.name for each in fields(EngineReport)}
PER_S = {"generated_tokens": 1_000, "steps": 100, "requests_total": 5}
PREFILLS = {"generated_tokens": 50, "steps": 5}  # steps of 0.2 s


def backend(name: str = "a", *, reports: bool = True, **facts: Any) -> BackendFacts:
    """`facts`: of the backend, or of its engine's report."""
    told = {name: facts.pop(name) for name in REPORTED & facts.keys()}
    report = replace(REPORT, **told) if reports else None
    return replace(BUSY, name=name, report=report, **facts)


def moment(
    at_s: float,
    *backends: BackendFacts,
    per_s: Mapping[str, float] | None = None,
    **facts: Any,
) -> PoolFacts:
    """The facts at a time. `per_s`: how fast the counters of each backend grow."""
    counts: dict[str, Any] = {
        name: round(at_s * rate) for name, rate in (PER_S | dict(per_s or {})).items()
    }
    told = {name: counts.pop(name) for name in REPORTED & counts.keys()}
    counted = []
    for each in backends:
        report = each.report and replace(each.report, at_s=at_s, **told)
        counted.append(replace(each, report=report, **counts))
    return PoolFacts(at_s, tuple(counted), **facts)


def found(
    *backends: BackendFacts, per_s: Mapping[str, float] | None = None, **facts: Any
) -> Finding:
    """What is found when it has been so for ten seconds."""
    return found_over(
        moment(float(second), *backends, per_s=per_s, **facts) for second in range(11)
    )


def found_over(moments: Iterable[PoolFacts]) -> Finding:
    window = Window()
    for each in moments:
        window.add(each)
    return find(window, list(window.backends()))


def queue(lack: WaitReason, waiting: int = 10, oldest_s: float = 3.0) -> dict[str, Any]:
    """So many wait for that."""
    return {"waiting": waiting, "oldest_s": oldest_s, "lacks": {lack: 6}}
