"""What a route changes in a request: its model, its headers, and how long its answer may be."""

from typing import Final

import msgspec

from penstock.balancing.apis import GENERATE
from penstock.balancing.ask import Ask
from penstock.balancing.body_edits import cap_edits, within
from penstock.balancing.members import span_of
from penstock.balancing.reader import COUNT_MAX
from penstock.balancing.routes.decision import Changes
from penstock.proxy.data.reading import ADAPTER
from penstock.proxy.data.request import Request
from penstock.proxy.errors.client import FormWithoutModel
from penstock.proxy.wire.edit import Edits

MODEL: Final = b"model"


def name_model(request: Request, ask: Ask) -> None:
    """Have its backend asked for the model of `ask`. Raises FormWithoutModel."""
    assert ask.model is not None
    if request.is_form:
        if span_of(request.ask.places, MODEL) is None:
            raise FormWithoutModel
        request.edits = ((MODEL, ask.model.encode()),)
        return
    request.edits += ((MODEL, msgspec.json.encode(ask.model)),)
    head = request.head
    if head.get(ADAPTER):
        head.headers = [each for each in head.headers if each[0] != ADAPTER]
        head.headers.append((ADAPTER, ask.model.encode()))


def change(request: Request, changes: Changes) -> None:
    """What the route changes for all its targets."""
    if changes.max_tokens is not None:
        cap(request, changes.max_tokens)
    if changes.defaults and request.body and not request.is_form:
        request.edits += _lacking(request, changes.defaults)
    if changes.headers:
        head, names = request.head, frozenset([name for name, _ in changes.headers])
        head.headers = [each for each in head.headers if each[0] not in names]
        head.headers += changes.headers
        head.nominated -= names  # a client cannot have them dropped


def _lacking(request: Request, defaults: Edits) -> Edits:
    """The defaults for which its client gave nothing, or null."""
    places = [(default, span_of(request.ask.places, default[0])) for default in defaults]
    return tuple(
        [
            default
            for default, place in places
            if place is None or request.body[place[0] : place[1]] == b"null"
        ]
    )


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
