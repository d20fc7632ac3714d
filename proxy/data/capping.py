"""Makes answers shorter than their clients asked for."""

from penstock.balancing.answer_cap import cap_edits, within
from penstock.balancing.apis import GENERATE
from penstock.balancing.places import span_of
from penstock.balancing.reader import COUNT_MAX
from penstock.proxy.data.request import Request


def cap(request: Request, most: int) -> bool:
    """Have its answer end after so many tokens at most. False: it does so anyway."""
    ask = request.ask
    if ask.answer_limits is None:  # a form, or read before there were steps
        return False
    if request.capped is not None and request.capped <= most:
        return False
    edits = cap_edits(ask.path, ask.answer_limits, most)
    if not edits:
        return False
    if ask.path == GENERATE:
        begin, end = span_of(ask.places, b"sampling_params") or (0, 0)
        edits = ((b"sampling_params", within(request.body[begin:end] or b"{}", edits)),)
    request.capped = most
    request.edits += edits
    # The longest of its fields is `most` now.
    request.ask = ask.changed(
        max_tokens=min(most, COUNT_MAX), output_tokens=min(ask.output_tokens, float(most))
    )
    return True
