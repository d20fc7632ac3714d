"""`/metrics` under vLLM's names: the ones a router reads."""

from penstock.bench.sim.instance import Instance


def render(server: Instance) -> bytes:
    """The Prometheus text of a server's engine."""
    engine = server.engine
    labels = f'engine="0",model_name="{server.model}"'
    gauges: dict[str, float] = {
        "num_requests_running": engine.running,
        "num_requests_waiting": engine.waiting,
        "kv_cache_usage_perc": engine.kv_usage,
    }
    counters: dict[str, float] = {
        "prompt_tokens": engine.prompt_tokens_total,
        "prompt_tokens_cached": engine.cache_hits_total,
        "generation_tokens": engine.generation_tokens_total,
        "prefix_cache_queries": engine.cache_queries_total,
        "prefix_cache_hits": engine.cache_hits_total,
        "num_preemptions": engine.preemptions_total,
    }
    lines = [
        line for name, value in gauges.items() for line in _family(name, "gauge", labels, value)
    ]
    for name, value in counters.items():
        lines += _family(f"{name}_total", "counter", labels, value)
    lines += _waiting_by_reason(server, labels)
    lines += _states(server, labels)
    lines += _queue_time(server, labels)
    lines += _step_tokens(server, labels)
    lines += _outcomes(server, labels)
    lines += _cache_config(server)
    return "".join(f"{line}\n" for line in lines).encode()


def _family(name: str, kind: str, labels: str, value: float) -> list[str]:
    return [*_head(name, kind), f"vllm:{name}{{{labels}}} {float(value)}"]


def _head(name: str, kind: str) -> list[str]:
    metric = f"vllm:{name}"
    return [f"# HELP {metric} Simulated.", f"# TYPE {metric} {kind}"]


def _waiting_by_reason(server: Instance, labels: str) -> list[str]:
    name = "num_requests_waiting_by_reason"
    waiting = {"capacity": server.engine.waiting, "deferred": 0}
    samples = [f'vllm:{name}{{{labels},reason="{r}"}} {float(n)}' for r, n in waiting.items()]
    return [*_head(name, "gauge"), *samples]


def _states(server: Instance, labels: str) -> list[str]:
    name = "engine_sleep_state"
    states = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
    samples = [f'vllm:{name}{{{labels},sleep_state="{s}"}} {float(v)}' for s, v in states.items()]
    return [*_head(name, "gauge"), *samples]


def _queue_time(server: Instance, labels: str) -> list[str]:
    name, engine = "request_queue_time_seconds", server.engine
    return [
        *_head(name, "histogram"),
        f'vllm:{name}_bucket{{{labels},le="+Inf"}} {float(engine.admitted_total)}',
        f"vllm:{name}_count{{{labels}}} {float(engine.admitted_total)}",
        f"vllm:{name}_sum{{{labels}}} {engine.queue_time_s_total}",
    ]


def _step_tokens(server: Instance, labels: str) -> list[str]:
    name, engine = "iteration_tokens_total", server.engine
    return [
        *_head(name, "histogram"),
        f'vllm:{name}_bucket{{{labels},le="+Inf"}} {float(engine.steps_total)}',
        f"vllm:{name}_count{{{labels}}} {float(engine.steps_total)}",
        f"vllm:{name}_sum{{{labels}}} {float(engine.step_tokens_total)}",
    ]


def _outcomes(server: Instance, labels: str) -> list[str]:
    # Aborted requests are not counted here, as vLLM does not.
    finished = {"stop": 0, "length": server.engine.finished_total, "abort": 0, "error": 0}
    name = "request_success_total"
    lines = _head(name, "counter")
    lines += [
        f'vllm:{name}{{{labels},finished_reason="{r}"}} {float(n)}' for r, n in finished.items()
    ]
    name = "admission_rejections_total"
    lines += _head(name, "counter")
    lines.append(f'vllm:{name}{{{labels},reason="max_num_queued_reqs"}} {float(server.busy_total)}')
    return lines


def _cache_config(server: Instance) -> list[str]:
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
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return [*_head("cache_config_info", "gauge"), f"vllm:cache_config_info{{{text}}} 1.0"]
