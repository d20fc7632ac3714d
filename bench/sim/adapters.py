"""LoRA adapters, and `POST /v1/load_lora_adapter` as vLLM answers it."""

import asyncio
from typing import Any

import orjson

from penstock.bench.sim.errors import Refusal
from penstock.bench.sim.instance import Instance
from penstock.bench.sim.job import parse_body
from penstock.bench.sim.reply import Reply
from penstock.bench.sim.request import Request


def load(server: Instance, request: Request, reply: Reply) -> None:
    """There is no such endpoint unless vLLM was told to load adapters at run time."""
    adapters = server.adapters
    if not adapters.enabled:
        reply.whole(404, orjson.dumps({"detail": "Not Found"}))
        return
    body = parse_body(request.header("content-type"), request.body)
    name, path = body.get("lora_name"), body.get("lora_path")
    if not name or not path:
        message = "Both 'lora_name' and 'lora_path' must be provided."
        raise Refusal(400, message, "InvalidUserInput")
    if name in adapters.paths:
        message = f"The lora adapter '{name}' has already been loaded."
        raise Refusal(400, message, "InvalidUserInput")
    if path in adapters.missing:
        raise Refusal(
            404, f"Loading lora {name} failed: No adapter found for {path}", "NotFoundError"
        )

    def loaded() -> None:
        adapters.paths[str(name)] = str(path)
        text = f"Success: LoRA adapter '{name}' added successfully."
        reply.whole(200, text.encode(), "text/plain; charset=utf-8")

    if adapters.load_s:
        later = asyncio.get_running_loop().call_later(adapters.load_s, loaded)
        reply.gone = later.cancel
    else:
        loaded()


def cards(server: Instance, card: dict[str, Any]) -> list[dict[str, Any]]:
    """What `/v1/models` tells of each one. `card`: the base model's."""
    return [
        card | {"id": name, "root": path, "parent": server.model, "max_model_len": None}
        for name, path in server.adapters.paths.items()
    ]
