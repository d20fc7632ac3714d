"""What a route changes in a request: its model, its headers, and what its body says."""

from typing import Final

import msgspec

from penstock.balancing.ask import Ask
from penstock.balancing.routes.rule import Changes
from penstock.proxy.data.capping import cap
from penstock.proxy.data.invocations import ADAPTER
from penstock.proxy.data.request import Request
from penstock.proxy.errors.client import FormWithoutModel
from penstock.proxy.wire.edit import Edits, with_defaults

MODEL: Final = b"model"
# So much of a form is copied for another model, at each attempt.
COPIED_BYTES_MAX: Final = 1_048_576


def name_model(request: Request, ask: Ask) -> None:
    """Have its backend asked for the model of `ask`. Raises FormWithoutModel."""
    assert ask.model is not None
    if request.is_form:
        _name_in_form(request, ask.model.encode())
        return
    others: Edits = tuple([edit for edit in request.edits if edit[0] != MODEL])
    request.edits = (*others, (MODEL, msgspec.json.encode(ask.model)))
    head = request.head
    if head.get(ADAPTER):
        head.headers = [each for each in head.headers if each[0] != ADAPTER]
        head.headers.append((ADAPTER, ask.model.encode()))


def change(request: Request, changes: Changes) -> None:
    """What the route changes for all its targets."""
    if changes.max_tokens is not None:
        cap(request, changes.max_tokens)
    if changes.defaults and request.body and not request.is_form:
        request.beginning = with_defaults(request.body, changes.defaults)
    if changes.headers:
        head, names = request.head, frozenset([name for name, _ in changes.headers])
        head.headers = [each for each in head.headers if each[0] not in names]
        head.headers += changes.headers
        head.nominated -= names  # a client cannot have them dropped


def _name_in_form(request: Request, name: bytes) -> None:
    """Put another model in a multipart form, whose shorter side is copied."""
    span, body = request.ask.model_span, request.body
    if span is None:
        raise FormWithoutModel
    begin, end = span
    request.beginning = request.form_ending = None
    if begin <= COPIED_BYTES_MAX:
        request.beginning = end, body[:begin] + name
    elif len(body) - end <= COPIED_BYTES_MAX:
        request.form_ending = begin, name + body[end:]
    else:
        raise FormWithoutModel
