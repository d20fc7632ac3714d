"""Mutated requests through the real process: read as without sockets, and as by the referees."""

import asyncio
import os
from collections.abc import AsyncIterator
from itertools import islice

import pytest

from tests.e2e.process import Penstock, Serve
from tests.e2e.raw_backend import LENGTH, RawBackend
from tests.http.agreement import Agreement
from tests.http.mutator import Mutator
from tests.http.referees import Refused, all_h11_answers
from tests.http.rig import Loop, Rig

# The ordinary suite plays a few; `make fuzz` sets more.
REQUESTS = int(os.environ.get("FUZZ_PROCESS_REQUESTS", "300"))
SEED = int(os.environ.get("FUZZ_SEED", "21"))
WITHIN_S = 10.0
Played = tuple[bytes, bytes, bool, list[bytes]]


@pytest.fixture
async def backend() -> AsyncIterator[RawBackend]:
    backend = RawBackend()
    await backend.start()
    yield backend
    await backend.stop()


def played() -> list[Played]:
    """Requests with what the classes without sockets answer to each and send upstream."""
    mutator = Mutator(SEED)
    loop = Loop()
    rig = Rig(loop)
    mutated = islice(iter(mutator.next, None), REQUESTS)
    cases = [(data, *loop.run_until_complete(rig.play([data]))) for data in mutated]
    loop.close()
    return cases


@pytest.mark.timeout(1_200)
async def test_the_process_reads_the_same(serve: Serve, backend: RawBackend) -> None:
    cases = await asyncio.to_thread(played)
    penstock = await serve([backend.url], paths=["GET /raw", "POST /raw"])
    agreement = Agreement()
    for data, wanted, closed, upstream in cases:
        backend.expect()
        got = await _send(penstock, data, len(all_h11_answers(wanted)), closed=closed)
        arrived = [request for each in backend.arrived for request in _requests(each)]
        agreement.check(data, got, arrived)
        assert _bodies(got) == _bodies(wanted), data
        assert len(arrived) == sum(map(bool, upstream)), data
    print(dict(agreement.counts))


async def _send(penstock: Penstock, data: bytes, answers: int, *, closed: bool) -> bytes:
    """What comes of a request until it is answered, or closed where it must be."""
    reader, writer = await asyncio.open_connection("127.0.0.1", penstock.port)
    writer.write(data)
    got = b""
    async with asyncio.timeout(WITHIN_S):
        while closed or len(_whole(got)) < answers:
            more = await reader.read(65_536)
            if not more:
                break
            got += more
    writer.transport.abort()
    return got


def _whole(got: bytes) -> list[bytes]:
    """The bodies of the answers that are whole so far."""
    try:
        answers = all_h11_answers(got)
    except Refused as error:  # the last is cut across reads
        answers = error.before
    return [each.body for each in answers if each.whole]


def _bodies(got: bytes) -> list[tuple[int, bytes]]:
    return [(each.status, each.body) for each in all_h11_answers(got)]


def _requests(connection: bytes) -> list[bytes]:
    """The requests on one connection to the backend, which are all canonical."""
    found = []
    while connection:
        end = connection.index(b"\r\n\r\n") + 4
        match = LENGTH.search(connection, 0, end)
        size = end + (int(match[1]) if match else 0)
        found.append(connection[:size])
        connection = connection[size:]
    return found
