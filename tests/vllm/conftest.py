"""Two real vLLM servers for the whole run, with a real penstock process before them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

# The same process, checked the same way: its counters are at rest after each test.
from tests.e2e.conftest import serve as serve
from tests.e2e.conftest import simulate as simulate
from tests.e2e.process import Penstock, Serve
from tests.vllm.server import CONTEXT_TOKENS, VENV, VllmServer, running

Start = Callable[[], Awaitable[Penstock]]


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[VllmServer]]:
    """Two servers that a SIGTERM leaves 120 s to finish; loading takes about a minute.

    Their context is long, so that a request can outlast any look at it.
    """
    assert (VENV / "bin" / "vllm").exists(), f"no vLLM in {VENV}; run this by `make test-vllm`"
    folder = tmp_path_factory.mktemp("vllm")
    flags = ("--shutdown-timeout", "120", "--max-model-len", str(CONTEXT_TOKENS))
    with running([VllmServer(folder / f"{i}.log", *flags) for i in range(2)]) as servers:
        yield servers


@pytest.fixture
async def servers(fleet: list[VllmServer]) -> list[VllmServer]:
    """The two servers, both serving, whatever an earlier test has done to them."""
    for server in fleet:
        if not server.running:
            server.start()
    for server in fleet:
        await asyncio.to_thread(server.wait)
    return fleet


@pytest.fixture
async def penstock(servers: list[VllmServer], serve: Serve, tmp_path: Path) -> Penstock:
    """A penstock before both; it must come to rest after the test."""
    return await serve([server.url for server in servers], health={"interval_s": 0.5})
