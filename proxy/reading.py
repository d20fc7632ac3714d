"""What a request wants, read from its body, and the body as it goes upstream."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from balancing.ask import Ask
from balancing.outline import LARGE_BYTES
from balancing.peek import NO_OBJECT, MalformedAsk
from proxy.edit import Edit, key_added, with_key
from proxy.errors import BadRequest
from proxy.heads import RequestHead
from proxy.invocations import INVOCATIONS, adapter_of, invoked_path
from proxy.paths import Route

if TYPE_CHECKING:
    from proxy.plane import DataPlane


# The request, its route, the body as it goes upstream, whether the backend is asked for usage that
# the client did not ask for, and what has yet to be done to the body where it is sent. A tuple: a
# named one is ten times dearer to make.
Wanted = tuple[Ask, Route, bytes, bool, Edit | None]


def wanted(
    plane: "DataPlane", head: RequestHead, route: Route, body: bytes, party: str
) -> Iterator[Wanted | None]:
    """Read a request, and have usage reported where it streams. Raises BadRequest.

    None as long as there is more to read: to raise StopIteration with a result is dear.
    """
    path, model = head.path, None
    if path == INVOCATIONS and not route.first_pool:
        path = yield from invoked_path(body)
        route = plane.route(b"POST", path) or route
        model = adapter_of(head.headers)
    try:
        ask = yield from plane.ask_of(
            path.decode("ascii"), route, head.headers, body, head.tenant, party
        )
    except MalformedAsk as error:
        raise BadRequest(str(error)) from None
    if model is not None:
        ask = msgspec.structs.replace(ask, model=model)
    hides_usage, edit = False, None
    if not route.first_pool:
        if head.method == b"POST" and not body and not route.anywhere:
            raise BadRequest(NO_OBJECT)
        if ask.usage_options and route.dialect.asks_usage:
            hides_usage = True
            if len(body) > LARGE_BYTES:
                edit = key_added(body, b"stream_options", ask.usage_options)
            else:
                body = with_key(body, b"stream_options", ask.usage_options)
    yield ask, route, body, hides_usage, edit
