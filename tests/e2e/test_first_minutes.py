"""Backends that cannot be reached from the start: why is told at once."""

import socket

from tests.e2e.process import Serve, Simulate


async def test_a_refused_port_and_an_unknown_name_are_told_apart(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(1)
    with socket.socket() as sock:  # bound, but nobody listens
        sock.bind(("127.0.0.1", 0))
        urls = [
            servers[0].url,
            f"http://127.0.0.1:{sock.getsockname()[1]}",
            "http://no-such-host.invalid:8000",
        ]
        penstock = await serve(urls, ready=1)
        await penstock.until(
            lambda listing: (
                [each["reason"] for each in listing] == ["", "unreachable", "unresolved"]
            ),
            5,
        )
    assert {each["state"] for each in (await penstock.backends())[1:]} == {"starting"}
    log = b"".join(penstock.log)
    assert log.count(b"name=b1 reason=unreachable") == 1
    assert log.count(b"name=b2 reason=unresolved") == 1
