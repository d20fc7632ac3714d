"""Backends that refuse everything within a millisecond, beside others that do not."""

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from tests.e2e.answers import ask
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.raw_backend import RawBackend, answer

REQUESTS = 200


@pytest.fixture
async def refusing() -> AsyncIterator[RawBackend]:
    backend = RawBackend()
    body = b'{"error":{"message":"no","type":"BadRequestError","code":400}}'
    backend.always = lambda _: (answer(body, status=b"400 Bad Request"),)
    await backend.start()
    yield backend
    await backend.stop()


async def asked(penstock: Penstock) -> tuple[Counter[int], Counter[str]]:
    statuses: Counter[int] = Counter()
    backends: Counter[str] = Counter()
    for number in range(REQUESTS):
        got = await ask(penstock, prompt=f"number {number}", max_tokens=2, stream=True)
        statuses[got.status] += 1
        backends[got.header(b"x-penstock-backend").decode()] += 1
    return statuses, backends


async def test_a_key_that_only_one_refuses_takes_it_out_and_costs_no_request(
    simulate: Simulate, serve: Serve
) -> None:
    servers = await simulate(4, api_key="right")
    penstock = await serve(
        servers, pool={"api_key": "right", "forward_authorization": "pool"}, health={}
    )
    servers[0].api_key = "another"
    statuses, backends = await asked(penstock)
    assert statuses == {200: REQUESTS}
    assert backends["b0"] == 0
    await penstock.until(
        lambda listing: (listing[0]["state"], listing[0]["reason"]) == ("ejected", "refusing"), 5
    )


async def test_a_key_that_is_refused_from_the_start_is_told(
    simulate: Simulate, serve: Serve
) -> None:
    right, other = await simulate(1, api_key="right"), await simulate(1, api_key="other")
    penstock = await serve([*right, *other], ready=1, pool={"api_key": "right"})
    await penstock.until(
        lambda listing: (listing[1]["state"], listing[1]["reason"]) == ("starting", "refusing"), 5
    )


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (b"200 OK", b"text/html", b"<html>log in</html>"),
        (b"200 OK", b"application/json", b'{"error":{"code":500}}'),
        (b"200 OK", b"application/json", b"{}"),
        (b"302 Found", b"text/html", b"elsewhere"),
        (b"520 Odd", b"text/html", b"no"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_no_answer_attracts_nothing(
    simulate: Simulate,
    serve: Serve,
    refusing: RawBackend,
    status: bytes,
    kind: bytes,
    body: bytes,
    stream: bool,
) -> None:
    said = answer(body, status=status).replace(b"application/json", kind)
    refusing.always = lambda _: (said,)
    servers = await simulate(3)
    penstock = await serve([refusing.url, *(server.url for server in servers)])
    backends: Counter[str] = Counter()
    for number in range(REQUESTS):
        got = await ask(penstock, prompt=f"number {number}", max_tokens=2, stream=stream)
        backends[got.header(b"x-penstock-backend").decode()] += 1
    print(f"{status!r} {kind!r} {stream}: {backends}")
    assert backends["b0"] <= REQUESTS // 5


async def test_fast_refusals_that_the_others_do_not_give_attract_nothing(
    simulate: Simulate, serve: Serve, refusing: RawBackend
) -> None:
    servers = await simulate(3)
    penstock = await serve([refusing.url, *(server.url for server in servers)])
    statuses, backends = await asked(penstock)
    print(f"a backend that refuses everything got {backends['b0']} of {REQUESTS} requests")
    assert set(statuses) == {200, 400}
    assert backends["b0"] <= REQUESTS // 10


PAGE = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 5\r\n\r\nlogin"
EVENT = b'data: {"error": {"message": "no", "type": "BadRequestError", "code": 400}}\n\n'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b"


@pytest.mark.parametrize(
    "nothing",
    [
        PAGE,
        answer(b'{"error":{"message":"no","code":500}}'),
        STREAM % (len(EVENT), EVENT),
    ],
    ids=["login page", "error in a 200", "error event"],
)
async def test_fast_answers_that_answer_nothing_attract_nothing(
    simulate: Simulate, serve: Serve, refusing: RawBackend, nothing: bytes
) -> None:
    refusing.always = lambda _: (nothing,)
    servers = await simulate(3)
    penstock = await serve([refusing.url, *(server.url for server in servers)])
    _, backends = await asked(penstock)
    assert backends["b0"] <= REQUESTS // 10


@pytest.mark.parametrize("status", [b"302 Found", b"520 Unknown"])
async def test_a_redirection_or_an_odd_failure_goes_to_another(
    simulate: Simulate, serve: Serve, refusing: RawBackend, status: bytes
) -> None:
    refusing.always = lambda _: (answer(b"{}", b"location: https://inside/", status=status),)
    servers = await simulate(3)
    penstock = await serve([refusing.url, *(server.url for server in servers)])
    statuses, backends = await asked(penstock)
    assert statuses == {200: REQUESTS}
    assert backends["b0"] == 0
