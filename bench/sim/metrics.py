"""`/metrics` under vLLM's names: the ones a router reads."""

from collections.abc import Iterator, Mapping

from penstock.bench.sim.instance import Instance


def render(server: Instance) -> bytes:
    """The Prometheus text of a server's engine."""
    lines = [line for family in _families(server) for line in _lines(*family)]
    return "".join(f"{line}\n" for line in lines).encode()


def _lines(name: str, kind: str, samples: dict[str, float]) -> Iterator[str]:
    """`samples`: values by what follows the family's name."""
    yield f"# HELP vllm:{name} Simulated."
    yield f"# TYPE vllm:{name} {kind}"
    for labels, value in samples.items():
        yield f"vllm:{name}{labels} {float(value)}"


def _families(server: Instance) -> Iterator[tuple[str, str, dict[str, float]]]:
    engine = server.engine
    base = f'engine="0",model_name="{server.model}"'
    all_, infinite = f"{{{base}}}", f'_bucket{{{base},le="+Inf"}}'

    def by(label: str, values: Mapping[str, float]) -> dict[str, float]:
        return {f'{{{base},{label}="{name}"}}': value for name, value in values.items()}

    def histogram(count: int, total: float) -> dict[str, float]:
        return {infinite: count, f"_count{all_}": count, f"_sum{all_}": total}

    yield "num_requests_running", "gauge", {all_: engine.running}
    yield "num_requests_waiting", "gauge", {all_: engine.waiting}
    yield "kv_cache_usage_perc", "gauge", {all_: engine.kv_usage}
    for name, value in (
        ("prompt_tokens", engine.prompt_tokens_total),
        ("prompt_tokens_cached", engine.cache_hits_total),
        ("generation_tokens", engine.generation_tokens_total),
        ("prefix_cache_queries", engine.cache_queries_total),
        ("prefix_cache_hits", engine.cache_hits_total),
        ("num_preemptions", engine.preemptions_total),
    ):
        yield f"{name}_total", "counter", {all_: value}
    waiting = by("reason", {"capacity": engine.waiting, "deferred": 0})
    yield "num_requests_waiting_by_reason", "gauge", waiting
    states = by("sleep_state", {"awake": 1, "weights_offloaded": 0, "discard_all": 0})
    yield "engine_sleep_state", "gauge", states
    queued = histogram(engine.admitted_total, engine.queue_time_s_total)
    yield "request_queue_time_seconds", "histogram", queued
    steps = histogram(engine.steps_total, engine.step_tokens_total)
    yield "iteration_tokens_total", "histogram", steps
    # Aborted requests are not counted here, as vLLM does not.
    finished = {"stop": 0, "length": engine.finished_total, "abort": 0, "error": 0}
    yield "request_success_total", "counter", by("finished_reason", finished)
    rejections = by("reason", {"max_num_queued_reqs": server.busy_total})
    yield "admission_rejections_total", "counter", rejections
    yield "cache_config_info", "gauge", {_cache_config(server): 1}


def _cache_config(server: Instance) -> str:
    profile = server.profile
    tokens = profile.kv_blocks * profile.block_tokens
    labels = {
        "block_size": profile.block_tokens,
        "enable_prefix_caching": profile.prefix_caching,
        "engine": 0,
        "hash_block_size": profile.block_tokens,
        "kv_cache_max_concurrency": tokens / server.max_model_len,
        "kv_cache_size_tokens": tokens,
        "num_gpu_blocks": profile.kv_blocks,
        "prefix_caching_hash_algo": "sha256",
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
