"""The SDKs' own time-outs."""

import asyncio
from time import monotonic
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.process import Serve, Simulate

USER = [{"role": "user", "content": "Tell me of rivers."}]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_sdks_own_timeout_is_a_timeout(
    simulate: Simulate, serve: Serve, stream: bool
) -> None:
    """It raises its APITimeoutError, whatever its timer; nobody else is to blame."""
    servers = await simulate(2)
    penstock = await serve(servers)
    for server in servers:
        server.faults.set("hang_after_headers")
    options: Any = {"base_url": penstock.url + "/v1", "api_key": "k", "max_retries": 0}
    ask: Any = {"model": "sim-model", "messages": USER, "max_tokens": 40, "stream": stream}
    anthropics: Any = {"api_key": "k", "max_retries": 0, "base_url": penstock.url}
    late_s = 0.0
    for timeout_s in (0.3, 0.45, 0.6):
        began_s = monotonic()
        async with openai.AsyncOpenAI(**options, timeout=timeout_s) as gpt:
            calls = [gpt.chat.completions.create(**ask) for _ in range(10)]
            raised = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(error) for error in raised} == {openai.APITimeoutError}
        async with anthropic.AsyncAnthropic(**anthropics, timeout=timeout_s) as claude:
            with pytest.raises(anthropic.APITimeoutError):
                await claude.messages.create(**ask)
        late_s = max(late_s, monotonic() - began_s - 2 * timeout_s)
    await penstock.until_at_rest()
    assert [each["failures_total"] for each in await penstock.backends()] == [0, 0]
    counted = await penstock.metrics()
    codes = {line.split('code="')[1][:3] for line in counted.split("\n") if 'code="' in line}
    # A client that leaves 0.2 s late is told 408. Nobody is told 504, a backend's fault.
    assert codes == {"499"} or (late_s > 0.2 and codes == {"408", "499"})
    assert {line["status"] for line in penstock.access_lines} == {int(code) for code in codes}
