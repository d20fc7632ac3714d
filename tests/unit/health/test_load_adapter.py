"""What became of a load: the backend's own list says it."""

import pytest

from penstock.health.probes import Prober
from penstock.proxy.wire.questions import Answer
from tests.unit.health.told import Told

BASE = b'{"data":[{"id":"base","max_model_len":4096}]}'
BOTH = b'{"data":[{"id":"base","max_model_len":4096},{"id":"sql","max_model_len":null}]}'
REFUSED = b'{"error":{"message":"no","type":"NotFoundError","code":404}}'
NO_ENDPOINT = b'{"detail":"Not Found"}'


@pytest.mark.parametrize(
    ("answer", "listed", "reason"),
    [
        (Answer(200, b"Success"), Answer(200, BOTH), ""),
        (Answer(400, b"has already been loaded"), Answer(200, BOTH), ""),
        (Answer(200, b"Success"), Answer(200, BASE), "not_listed"),
        (Answer(400, REFUSED), Answer(200, BASE), "status_400"),
        (Answer(404, REFUSED), Answer(200, BASE), "status_404"),
        (Answer(404, NO_ENDPOINT), Answer(200, BASE), "no_endpoint"),
        (Answer(500, b""), Answer(200, BASE), "status_500"),
        (Answer(200, b"Success"), Answer(500, b""), "status_500"),
        (Answer(200, b"Success"), Answer(200, b"{"), "no_models"),
        (Answer(401, b""), Answer(401, b""), "refusing"),
        (Answer(reason="unreachable"), Answer(200, BASE), "unreachable"),
        (Answer(reason="timeout"), Answer(200, BOTH), "timeout"),
    ],
)
async def test_how_a_load_ends(answer: Answer, listed: Answer, reason: str) -> None:
    engine = Told(listed, answer)
    outcome = await Prober(engine, keyed=True).load_adapter("sql", "/adapters/sql", 1.0, 1.0)
    assert outcome.reason == reason
    wanted = b"/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": "/adapters/sql"}
    assert engine.asked[0] == wanted
    if not reason:
        assert outcome.models is not None
        assert set(outcome.models) == {"base", "sql"}
        assert outcome.contexts == {"base": 4_096, None: 4_096}
