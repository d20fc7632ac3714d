"""What the access log says of a request that an exchange was made for."""

from balancing.ask import Ask
from balancing.lease import Lease
from proxy.dialects.dialect import Usage
from proxy.log_lines import printable


def add_request(
    line: dict[str, object],
    ask: Ask,
    lease: Lease | None,
    usage: Usage | None,
    attempts: int,
    *,
    began_s: float,
    now_s: float,
) -> None:
    """Add to `line` who served it, how long that took, and its tokens."""
    first_s = lease.first_token_s if lease is not None else None
    known = ask.model is not None and lease is not None and lease.backend.lists(ask.model)
    line["model"] = printable(ask.model or "") if known else None
    line["backend"] = lease.backend.name if lease is not None else None
    line["attempts"] = attempts
    line["stream"] = ask.stream
    line["duration_ms"] = int((now_s - began_s) * 1e6) / 1000
    line["ttft_ms"] = int((first_s - began_s) * 1e6) / 1000 if first_s else None
    line["prompt_tokens"] = usage.prompt_tokens if usage else None
    line["completion_tokens"] = usage.completion_tokens if usage else None
