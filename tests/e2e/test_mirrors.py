"""Mirrors in real processes: copies come to the other pool, and nobody notices."""

from typing import Any

import orjson

from tests.e2e.process import Serve, Simulate
from tests.e2e.request import BODIES, CHAT, ask
from tests.e2e.told import samples_of

STREAM = CHAT | {"stream": True, "max_tokens": 8}
REQUESTS = 4


async def test_each_request_is_copied_and_counted_once(simulate: Simulate, serve: Serve) -> None:
    (now,) = await simulate(1)
    (new,) = await simulate(1)
    pools = [
        {"name": "now", "backends": [{"name": "a", "url": now.url}]},
        {"name": "next", "backends": [{"name": "b", "url": new.url}]},
    ]
    routes: list[dict[str, Any]] = [
        {"name": "r", "to": [{"pool": "now"}], "mirror": {"pool": "next", "share": 1.0}}
    ]
    penstock = await serve([now, new], pools=pools, routes=routes)
    for _ in range(REQUESTS):
        got = await ask(penstock, "/v1/chat/completions", STREAM, authorization="Bearer sk-1")
        assert (got.status, got.headers["x-penstock-backend"]) == (200, "a")
    for path in ("/v1/responses", "/v1/messages", "/v1/completions"):
        assert (await ask(penstock, path, BODIES[path])).status == 200
    samples = samples_of(await penstock.metrics())
    mine = [each for each in new.seen if dict(each.headers).get(b"x-penstock-mirror") == b"1"]
    assert len(mine) == REQUESTS + 3
    assert not [each for each in mine if b"authorization" in dict(each.headers)]
    stored = [each for each in mine if each.path == "/v1/responses"]
    assert orjson.loads(stored[0].body)["store"] is False
    assert samples["penstock_mirror_requests_total{result=ok,route=r}"] == REQUESTS + 3
    assert samples["penstock_mirror_first_token_ratio_count{route=r}"] == REQUESTS
    counted = {name: n for name, n in samples.items() if name.startswith("penstock_requests_total")}
    assert sum([n for name, n in counted.items() if "pool=next" in name]) == 0
    lines = [each for each in penstock.access_lines if each["path"] in BODIES]
    assert {each["backend"] for each in lines} == {"a"}
    assert len(lines) == REQUESTS + 3
