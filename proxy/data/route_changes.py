"""What a route changes in a request: its model, its headers, and what its body says."""

from typing import Final

import msgspec

from penstock.balancing.ask import Ask
from penstock.balancing.places import span_of
from penstock.balancing.routes.rule import Changes
from penstock.proxy.data.capping import cap
from penstock.proxy.data.invocations import ADAPTER
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
