"""The API server of the tests as kubectl sees it: lists, and watches that tell changes."""

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.e2e.api_server import ApiServer, endpoint_slice

KUBECTL: Final = Path(os.environ.get("TEST_HELM", ".helm")).resolve() / "kubectl" / "kubectl"
pytestmark = pytest.mark.skipif(not KUBECTL.exists(), reason="make lint-deploy has kubectl")


async def kubectl(api: ApiServer, *arguments: str) -> asyncio.subprocess.Process:
    command = (KUBECTL, "--server", api.url, "--namespace", "llm", "get", "endpointslices")
    return await asyncio.create_subprocess_exec(
        *command, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def pod(address: str) -> dict[str, Any]:
    return {"addresses": [address], "conditions": {"ready": True}}


async def test_kubectl_reads_the_lists() -> None:
    async with ApiServer() as api:
        await api.put(endpoint_slice("a", "vllm", pod("10.0.0.1")), endpoint_slice("b", "other"))
        selector = ("--selector", "kubernetes.io/service-name=vllm", "--chunk-size", "1")
        process = await kubectl(api, *selector, "--output", "yaml")
        out, error = await process.communicate()
        (item,) = yaml.safe_load(out)["items"]
    assert not process.returncode, error
    assert item["metadata"]["name"] == "a"
    assert item["endpoints"] == [pod("10.0.0.1")]


async def test_kubectl_sees_what_changes() -> None:
    async with ApiServer() as api:
        await api.put(endpoint_slice("a", "vllm"))
        process = await kubectl(api, "--watch", "--output-watch-events", "--no-headers")
        stdout = process.stdout
        assert stdout is not None
        seen: list[list[str]] = []

        async def until(count: int) -> None:
            async with asyncio.timeout(20):
                while len(seen) < count:
                    seen.append((await stdout.readline()).decode().split()[:2])

        await until(1)
        await api.put(endpoint_slice("b", "vllm", pod("10.0.0.1")), endpoint_slice("a", "vllm"))
        await api.bookmark()
        await api.delete("b")
        await until(4)
        process.terminate()
        await process.communicate()
    assert seen == [["ADDED", "a"], ["ADDED", "b"], ["MODIFIED", "a"], ["DELETED", "b"]]
