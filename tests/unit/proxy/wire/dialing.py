"""Connections that nobody opens: a test hears of each dial, and holds both ends."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest


def by_hand(
    monkeypatch: pytest.MonkeyPatch,
    dialed: Callable[[str], None],
    connected: Callable[[Any], None] = lambda protocol: None,
) -> asyncio.AbstractEventLoop:
    """The loop, which opens no connection: it tells to which address, and for which protocol."""
    loop = asyncio.get_running_loop()

    async def sock_connect(_: socket.socket, where: tuple[str, int]) -> None:
        dialed(where[0])

    async def create_connection(factory: Any, *, sock: socket.socket) -> None:
        sock.close()
        connected(factory())

    monkeypatch.setattr(loop, "sock_connect", sock_connect)
    monkeypatch.setattr(loop, "create_connection", create_connection)
    return loop
