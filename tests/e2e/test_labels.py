"""Routes by what a classifier says, from the outside; and one that is of no use."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from penstock.balancing.labels.labels import AT_ONCE_OF_ONE, HELD_UP_S, IN_A_ROW
from penstock.bench.sim.server import SimServer
from tests.certificates import issue
from tests.e2e.classifier import MODES, Classifier
from tests.e2e.forked import run
from tests.e2e.process import Penstock, Serve, Simulate
from tests.e2e.request import ask

CHAT: Final = "/v1/chat/completions"
SECRET: Final = "hunter2 asks"
LONG: Final = "and so on, " * 20
ROUTES: Final[list[dict[str, Any]]] = [
    {
        "name": "plain",
        "match": {"model": "plain"},
        "to": [{"pool": "large", "model": "llama"}],
    },
    {"name": "simple", "match": {"label": "simple"}, "to": [{"pool": "small", "model": "qwen"}]},
    {"name": "rest", "to": [{"pool": "large", "model": "llama"}]},
]
TENANTS: Final[list[dict[str, Any]]] = [
    {"name": name, "keys": [{"key": f"key-of-{name}-0123456789"}]}
    for name in ("victim", "attacker")
]


@pytest.fixture
async def classifier() -> AsyncIterator[Classifier]:
    server = Classifier()
    await server.start()
    yield server
    await server.stop()


async def start(simulate: Simulate, serve: Serve, server: Classifier, /, **config: Any) -> Penstock:
    servers: list[SimServer] = []
    pools = []
    for name, model in (("small", "qwen"), ("large", "llama")):
        (backend,) = await simulate(1, model=model)
        servers.append(backend)
        pools.append({"name": name, "backends": [{"name": f"{name}-0", "url": backend.url}]})
    asked = server.settings
    return await serve(servers, **{"pools": pools, "routes": ROUTES, "classifier": asked} | config)


def body(text: str, model: str = "any") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4}


async def model_of(penstock: Penstock, text: str, tenant: str = "", model: str = "any") -> str:
    """Which model answers."""
    keys = {"authorization": f"Bearer key-of-{tenant}-0123456789"} if tenant else {}
    got = await ask(penstock, CHAT, body(text, model), **keys)
    assert got.status == 200, got.body
    return got.headers["x-penstock-model"]


async def results(penstock: Penstock) -> dict[str, int]:
    found = {}
    for line in (await penstock.metrics()).splitlines():
        if line.startswith("penstock_labels_total{"):
            found[line.partition('"')[2].partition('"')[0]] = int(float(line.split()[-1]))
    return found


async def test_simple_questions_go_to_a_small_model(
    simulate: Simulate, serve: Serve, classifier: Classifier
) -> None:
    penstock = await start(simulate, serve, classifier)
    assert await model_of(penstock, SECRET) == "qwen"
    assert await model_of(penstock, SECRET + LONG) == "llama"
    assert await model_of(penstock, SECRET) == "qwen"
    assert await model_of(penstock, SECRET, model="plain") == "llama"
    assert classifier.texts == [SECRET, SECRET + LONG]
    assert await results(penstock) == {"asked": 2, "cached": 1}
    # Nothing else goes there, and what went there is told nowhere.
    told = {"host", "accept", "accept-encoding", "user-agent", "content-type", "content-length"}
    assert all(set(head) == told for head in classifier.heads)
    log = b"".join(penstock.log) + orjson.dumps(penstock.access_lines)
    assert b"hunter2" not in log + (await penstock.metrics()).encode()


async def test_of_megabytes_the_ends_of_the_question_are_sent(
    simulate: Simulate, serve: Serve, classifier: Classifier
) -> None:
    penstock = await start(simulate, serve, classifier)
    asked = body("begins " + "b" * 100_000 + " ends")
    asked["messages"].insert(0, {"role": "system", "content": "s" * 3_000_000})
    got = await ask(penstock, CHAT, orjson.dumps(asked))
    assert got.status in (200, 400)  # too long for the model
    (text,) = classifier.texts
    assert text.startswith("begins bbb")
    assert text.endswith("bbb ends")
    assert len(text) <= 2_048 + 10


async def test_slow_is_waited_for(simulate: Simulate, serve: Serve, classifier: Classifier) -> None:
    penstock = await start(simulate, serve, classifier)
    classifier.mode = "slow"
    assert await model_of(penstock, "Hi") == "qwen"


@pytest.mark.parametrize("mode", MODES[2:])
async def test_one_that_is_of_no_use_is_left_alone(
    simulate: Simulate, serve: Serve, classifier: Classifier, mode: str
) -> None:
    penstock = await start(simulate, serve, classifier)
    classifier.mode = mode
    for number in range(IN_A_ROW + 3):
        assert await model_of(penstock, f"q{number}") == "llama"
    assert len(classifier.texts) == IN_A_ROW
    assert await results(penstock) == {"failed": IN_A_ROW, "skipped": 3}


async def test_one_with_https_is_verified(
    simulate: Simulate, serve: Serve, classifier: Classifier, tmp_path: Path
) -> None:
    issue(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    await classifier.stop()
    await classifier.start(tls)
    asked = classifier.settings | {"deadline_ms": 2_000}
    asked["url"] = asked["url"].replace("http:", "https:")
    stranger = await start(simulate, serve, classifier, classifier=asked)
    for number in range(IN_A_ROW):
        assert await model_of(stranger, f"q{number}") == "llama"
    assert b"reason=untrusted" in b"".join(stranger.log)
    assert classifier.texts == []
    trusting = {"SSL_CERT_FILE": str(tmp_path / "tls.ca")}
    penstock = await start(simulate, serve, classifier, classifier=asked, environment=trusting)
    assert await model_of(penstock, "Hi") == "qwen"


async def test_one_that_was_dead_is_found_again(
    simulate: Simulate, serve: Serve, classifier: Classifier
) -> None:
    penstock = await start(simulate, serve, classifier)
    assert await model_of(penstock, "before") == "qwen"
    await classifier.stop()
    for number in range(IN_A_ROW + 3):
        assert await model_of(penstock, f"q{number}") == "llama"
    await classifier.start()
    assert await model_of(penstock, "too early") == "llama"
    await asyncio.sleep(HELD_UP_S)
    assert await model_of(penstock, "again") == "qwen"
    assert await model_of(penstock, "and again") == "qwen"


@pytest.mark.alone
async def test_a_hung_one_delays_each_request_once(
    simulate: Simulate, serve: Serve, classifier: Classifier
) -> None:
    penstock = await start(simulate, serve, classifier)
    classifier.mode = "hung"
    times_s = []
    for number in range(IN_A_ROW + 5):
        began_s = time.monotonic()
        await model_of(penstock, f"q{number}")
        times_s.append(time.monotonic() - began_s)
    assert all(0.3 < each_s < 0.45 for each_s in times_s[:IN_A_ROW]), times_s
    assert all(each_s < 0.15 for each_s in times_s[IN_A_ROW:]), times_s


async def test_an_attacker_takes_no_labels_from_a_victim(
    simulate: Simulate, serve: Serve, classifier: Classifier
) -> None:
    """It sends what the classifier never answers, as much at once as it can."""
    asked = classifier.settings | {"deadline_ms": 3_000}
    penstock = await start(simulate, serve, classifier, tenants=TENANTS, classifier=asked)
    ended = asyncio.Event()

    async def attack(number: int) -> None:
        while not ended.is_set():
            await model_of(penstock, f"STUCK {number} {time.monotonic()}", "attacker")
            await asyncio.sleep(0.05)

    attacks = [asyncio.create_task(attack(number)) for number in range(30)]
    for pause_s in (0.6, 3.2):  # while its questions are stuck, and after they have failed
        await asyncio.sleep(pause_s)
        for number in range(20):
            assert await model_of(penstock, f"{time.monotonic()} {number}", "victim") == "qwen"
    ended.set()
    await asyncio.gather(*attacks)
    found = await results(penstock)
    assert found["asked"] == 40
    assert found["failed"] >= AT_ONCE_OF_ONE
    assert found["skipped"] > 0


async def test_who_leaves_while_it_waits_reaches_no_backend(
    simulate: Simulate, serve: Serve, classifier: Classifier
) -> None:
    penstock = await start(simulate, serve, classifier)
    classifier.mode = "hung"
    waiting = asyncio.create_task(model_of(penstock, "Hi"))
    while not classifier.texts:
        await asyncio.sleep(0.01)
    waiting.cancel()
    async with asyncio.timeout(5):
        while not penstock.access_lines:
            await asyncio.sleep(0.01)
    (line,) = penstock.access_lines
    assert (line["status"], line["backend"]) == (499, None)


async def test_it_comes_and_goes_by_a_reload(
    simulate: Simulate, serve: Serve, classifier: Classifier
) -> None:
    penstock = await start(simulate, serve, classifier, classifier=None, routes=ROUTES[2:])
    assert await model_of(penstock, "Hi") == "llama"
    status, _ = await penstock.reload(classifier=classifier.settings, routes=ROUTES)
    assert status == 200
    assert await model_of(penstock, "Hi") == "qwen"
    status, _ = await penstock.reload(classifier=None)
    assert status == 422
    status, _ = await penstock.reload(classifier=None, routes=ROUTES[2:])
    assert status == 200
    assert await model_of(penstock, "Ho") == "llama"
    assert classifier.texts == ["Hi"]


async def test_a_dry_run_takes_a_label_and_asks_for_none(
    simulate: Simulate, serve: Serve, classifier: Classifier, tmp_path: Path
) -> None:
    penstock = await start(simulate, serve, classifier)
    file = tmp_path / "body.json"
    file.write_bytes(orjson.dumps(body("Hi")))
    told = await run("explain", str(file), "--admin", penstock.admin_url)
    assert "route simple does not count: it has no label" in told.out
    assert "the classifier would be asked" in told.out
    told = await run("explain", str(file), "--label", "simple", "--admin", penstock.admin_url)
    assert "route simple counts: pool small, model qwen" in told.out
    assert "would be asked" not in told.out
    told = await run("explain", str(file), "--label", "odd", "--admin", penstock.admin_url)
    assert 'route simple does not count: the label is "odd", not simple' in told.out
    file.write_bytes(orjson.dumps(body("Hi", "plain")))
    told = await run("explain", str(file), "--admin", penstock.admin_url)
    assert "would be asked" not in told.out
    assert classifier.texts == []
