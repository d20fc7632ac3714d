"""Requests that have ended, and their spans as a receiver reads them."""

from typing import Any

import orjson

from penstock.proxy.dialects.dialect import Usage
from penstock.proxy.telemetry.recent import Kept
from penstock.proxy.telemetry.record import Record
from penstock.proxy.tracing.exporter import encoded
from penstock.proxy.tracing.span import Finished

TRACE, SPAN = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7"
ENDED_NS = 1_800_000_000_000_000_000


def served(failures: int = 0) -> Record:
    """A stream that began at 100 s, ended at 110 s, and was tried elsewhere before."""
    record = Record(100.0, 100.5, 101.0)
    record.read_s = 101.0
    record.status, record.whole, record.streamed = 200, True, True
    record.service_class = "standard"
    for number in range(failures + 1):
        began_s = 102.0 + number / 10
        record.begin_try(f"gpu-{number}", "chat", "cost", began_s)
        record.attempts += 1
        last = record.tries[-1]
        last.span_id = b"%016x" % (number + 1)
        last.sent(began_s + 0.05)
        if number < failures:
            last.failed("reset", began_s + 0.1)
    last.first_byte_s, last.first_token_s = 104.0, 105.0
    record.usage = Usage(812, 64, 640)
    record.ended_s = 110.0
    return record


def finished(record: Record, owner: str = "research", **given: Any) -> Finished:
    kept = Kept(record, b"id-1", owner, owner, given.pop("model", "llama"), stream=True)
    values: dict[str, Any] = {
        "trace_id": TRACE,
        "span_id": SPAN,
        "parent_id": b"",
        "state": b"",
        "method": "POST",
        "route": "/v1/chat/completions",
        "scheme": "http",
        "ended_unix_ns": ENDED_NS,
    }
    return Finished(kept, **(values | given))


def spans(request: Finished) -> list[dict[str, Any]]:
    """Its spans; attributes as mappings."""
    found = [orjson.loads(each) for each in encoded(request)]
    for span in found:
        span["attributes"] = plain(span["attributes"])
        for event in span["events"]:
            event["attributes"] = plain(event.get("attributes", []))
    return found


def plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    told = {}
    for each in attributes:
        ((kind, value),) = each["value"].items()
        told[each["key"]] = int(value) if kind == "intValue" else value
    assert len(told) == len(attributes), "a key comes twice"
    return told
