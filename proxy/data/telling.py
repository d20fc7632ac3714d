"""Tells a client of an error, in the way that is still possible."""

from penstock.proxy.data.event_relay import EventRelay
from penstock.proxy.data.relay import Relay
from penstock.proxy.data.request import Request
from penstock.proxy.errors.backend import BackendError, StreamBroken
from penstock.proxy.errors.client import ResponseNotFound
from penstock.proxy.errors.error import PenstockError


def tell(
    request: Request, error: PenstockError, relay: Relay | None, *, committed: bool
) -> PenstockError | None:
    """End its answer. `relay`: of its last attempt; `committed`: the client has some of it.

    Returns what it was told. None: an answer that was kept, in place of an error.
    """
    answer, dialect = request.answer, request.endpoint.dialect
    kept = request.kept if isinstance(error, BackendError) else None
    if kept is not None and not committed:
        kept.pass_on()  # no backend gave a better answer
        return None
    if isinstance(error, ResponseNotFound):
        answer.about = []  # do not show how far it was searched: it may be another tenant's
    if not answer.started:
        answer.fail(error, dialect.error_body(error))
        return error
    if isinstance(error, StreamBroken) and error.told:
        answer.write(error.told)
        answer.finish()
        return error
    streamed = request.ask.stream or isinstance(relay, EventRelay)
    answer.break_off(dialect.error_event(error) if streamed else b"")
    return error
