"""Compares the answer to a copy with that to its original, as counts of its route.

Texts are not compared: engines that sample answer differently each time.
"""

from penstock.proxy.data.mirror_copy import Copy
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.telemetry.record import Record


def compare(metrics: Metrics, route: str, record: Record, limit_tokens: int, copy: Copy) -> None:
    """Count how a whole copy differs. Nothing of an original that did not end well.

    `limit_tokens`: the most that the answer may have, 0 if the client set no limit.
    """
    if not record.whole or record.status != 200:
        return
    own_s = record.first_token_s - record.sent_s
    if record.streamed and record.first_token_s and copy.first_token_s and own_s > 0.0:
        ratios = metrics.mirrored(metrics.mirror_first_token, route)
        ratios.observe((copy.first_token_s - copy.sent_s) / own_s)
    if record.usage is None or copy.usage is None:
        return
    tokens, copied_tokens = record.usage.completion_tokens, copy.usage.completion_tokens
    if tokens:
        metrics.mirrored(metrics.mirror_tokens, route).observe(copied_tokens / tokens)
    if limit_tokens:
        cut, copy_cut = tokens >= limit_tokens, copied_tokens >= limit_tokens
        same = "same" if cut == copy_cut else "original_cut" if cut else "copy_cut"
        metrics.mirror_ends.add(route, same)
