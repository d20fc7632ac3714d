"""LiteLLM's proxy. It parses and writes every event anew, so it carries a small share of a load."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson

from penstock.bench.peers import venvs
from penstock.bench.peers.peer import KEY, MODEL, Running, serve, url
from penstock.bench.processes import free_port

# It imports for 9 s where its files are cached, for 40 s where not.
START_S: Final = 90.0
# 0.65 ms of CPU an event: a core is full at some 1,500 events/s.
LOAD_SHARE: Final = 0.02


def start(backends: Sequence[int], folder: Path, rule: str) -> Running:
    program = venvs.environment("LiteLLM") / "bin" / "litellm"
    port = free_port()
    models = [
        {
            "model_name": MODEL,
            "litellm_params": {
                "model": f"hosted_vllm/{MODEL}",
                "api_base": f"{url(backend)}/v1",
                "api_key": "none",
            },
        }
        for backend in backends
    ]
    config = {
        "model_list": models,
        "router_settings": {"routing_strategy": rule, "num_retries": 0},
    }
    (folder / "config.yaml").write_bytes(orjson.dumps(config))  # JSON is YAML
    command = [str(program), "--config", str(folder / "config.yaml"), "--telemetry", "False"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    more = {
        "LITELLM_MASTER_KEY": KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        # It breaks off a stream of equal events, which those of `bench overhead` are.
        "REPEATED_STREAMING_CHUNK_LIMIT": "1000000",
    }
    process = serve(command, port, health="/health/liveliness", within_s=START_S, more=more)
    return Running(
        venvs.version("LiteLLM"), port, process.pid, process, rewrites=True, load_share=LOAD_SHARE
    )
