"""An imported configuration serves a chat, as the proxy that it comes from did."""

from pathlib import Path
from typing import Any

import openai
import pytest

from penstock.bench.sim.prompt import render
from penstock.bench.sim.server import SimServer
from penstock.bench.sim.text import expected
from penstock.conf.document import read
from tests.e2e.forked import run
from tests.e2e.process import Penstock, Serve, Simulate

pytestmark = pytest.mark.once

KEY = "sk-0123456789abcdef"
MESSAGES = [{"role": "user", "content": "Tell me of rivers."}]
TEXT = expected(render(MESSAGES), 20)

LITELLM = """
model_list:
  - model_name: chat
    litellm_params: {{model: hosted_vllm/large, api_base: "http://{large}/v1", api_key: none}}
  - model_name: small
    litellm_params: {{model: hosted_vllm/small, api_base: "http://{small}/v1", api_key: none}}
router_settings:
  model_group_alias: {{gpt-4: chat}}
  fallbacks: [{{chat: [small]}}]
general_settings: {{master_key: os.environ/MASTER_KEY}}
"""
NGINX = """
upstream chat {{ least_conn; server {large}; server {small} backup; }}
server {{ listen 8080; location / {{ proxy_pass http://chat; proxy_read_timeout 30s; }} }}
"""


async def imported(kind: str, text: str, folder: Path, servers: list[SimServer]) -> Any:
    """What the command writes of their configuration. The ports are the test's own."""
    theirs = folder / f"their.{kind}"
    large, small = [each.url.removeprefix("http://") for each in servers]
    theirs.write_text(text.format(large=large, small=small))
    ran = await run("import", kind, str(theirs))
    assert ran.status == 0, ran.err
    settings: Any = read(ran.out).tree
    del settings["listen"]
    return settings


async def says(penstock: Penstock, model: str) -> tuple[str | None, str, str]:
    """The answer to a question, the model that gave it, and its backend."""
    url = f"{penstock.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as gpt:
        ask: Any = {"model": model, "messages": MESSAGES, "max_tokens": 20, "stream": True}
        raw = await gpt.chat.completions.with_raw_response.create(**ask)
        chunks = [chunk async for chunk in raw.parse()]
    text = "".join([each.choices[0].delta.content or "" for each in chunks])
    return text, chunks[0].model, raw.headers["x-penstock-backend"]


async def test_litellm(simulate: Simulate, serve: Serve, tmp_path: Path) -> None:
    """An alias answers, and its fall-back when its server is gone. Who has no key is refused."""
    large, small = [(await simulate(model=name))[0] for name in ("large", "small")]
    settings = await imported("litellm", LITELLM, tmp_path, [large, small])
    penstock = await serve([], ready=2, environment={"MASTER_KEY": KEY}, **settings)
    assert await says(penstock, "gpt-4") == (TEXT, "large", "chat-0")
    assert await says(penstock, "small") == (TEXT, "small", "small-0")
    large.faults.set("refuse")
    large.drop_connections()
    assert await says(penstock, "gpt-4") == (TEXT, "small", "small-0")
    async with openai.AsyncOpenAI(base_url=f"{penstock.url}/v1", api_key="other") as gpt:
        with pytest.raises(openai.AuthenticationError):
            await gpt.models.list()


async def test_nginx(simulate: Simulate, serve: Serve, tmp_path: Path) -> None:
    """The server answers, and the backup when it is gone."""
    main, backup = await simulate(2)
    settings = await imported("nginx", NGINX, tmp_path, [main, backup])
    penstock = await serve([], ready=2, **settings)
    assert await says(penstock, "sim-model") == (TEXT, "sim-model", "chat-0")
    main.faults.set("refuse")
    main.drop_connections()
    assert await says(penstock, "sim-model") == (TEXT, "sim-model", "chat-1")
