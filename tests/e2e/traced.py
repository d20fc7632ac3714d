"""What the tests of traces share: the request, its trace, and what the proxy tells of spans."""

from typing import Any

from penstock.bench.sim.server import SimServer
from tests.e2e.process import Penstock
from tests.e2e.request import CHAT
from tests.e2e.span_receiver import SpanReceiver
from tests.e2e.told import told

PATH = "/v1/chat/completions"
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{CALLER}-01", f"00-{TRACE}-{CALLER}-00"
KEY, SECRET = "sk-canary-0123456789abcdef", "canary prompt 91c2"
BODY = CHAT | {"messages": [{"role": "user", "content": SECRET}]}
SERVER, CLIENT = 2, 3


def tracing(receiver: SpanReceiver, **settings: Any) -> dict[str, Any]:
    return {"otlp_endpoint": receiver.url, "ratio": 1.0, "forced_ratio": 1.0} | settings


def lines_of(server: SimServer, name: bytes) -> list[list[bytes]]:
    """Of each request of a client its values of a header."""
    asked = [each for each in server.seen if each.header("x-request-id")]
    return [[value for key, value in each.headers if key.lower() == name] for each in asked]


async def counted(penstock: Penstock, result: str) -> float:
    return (await told(penstock)).get(count_of(result), 0.0)


def count_of(result: str) -> str:
    return f"penstock_trace_spans_total{{result={result}}}"
