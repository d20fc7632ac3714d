"""What is found out of one request before it is routed, while others run.

How many tokens its prompt has, by a tokenizer, and then its label, by the classifier. Each of them
only where it is configured and of use.
"""

from collections.abc import Callable

from penstock.balancing.tokens import NOTHING, Measure
from penstock.proxy.data.counting import Count
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.data.request import Request
from penstock.proxy.data.routing import is_routed, route_request


class Inquiry:
    """One request that is being inquired about. `found` is called once all is known."""

    __slots__ = ("_count", "_found", "_plane", "_request", "_step", "waits")

    def __init__(
        self,
        plane: DataPlane,
        request: Request,
        step: Callable[..., None],
        found: Callable[[], None],
    ) -> None:
        """`step` runs a function of ours. Whatever that raises is told to the client."""
        self._plane = plane
        self._request = request
        self._step = step
        self._found = found
        self._count: Count | None = None
        self.waits = True

    def begin(self) -> None:
        """Find it out."""
        plane, request = self._plane, self._request
        if plane.counting is not None and request.ask.measured != NOTHING:
            self._count = plane.counting.submit(request.body, request.ask.client, self._counted)
        if self._count is None:
            self._label()

    def end(self) -> None:
        """Nobody wants to know any more. A label that still comes finds the exchange ended."""
        if self._count is not None:
            self._count.cancel()
            self._count = None

    def _counted(self, counted: Measure | None) -> None:
        """Go on: a tokenizer has counted the prompt, or failed to."""
        self._count = None
        if counted is not None:
            self._request.ask = self._request.ask.with_count(counted, self._plane.estimator)
        self._step(self._label)

    def _label(self) -> None:
        """Have the classifier asked, if a label decides where the request goes."""
        plane, ask = self._plane, self._request.ask
        wants = ask.wants
        conversation = None
        if wants is not None:
            conversation, wants.conversation = wants.conversation, None  # it refers to the body
        if plane.labelling.on and is_routed(ask):
            asked = route_request(plane, ask, self._request.head.get, draw=0)
            if plane.routes.needs_label(asked):
                plane.labelling.submit(ask.client, conversation, self._labelled)
                return
        self.waits = False
        self._found()

    def _labelled(self, label: str | None) -> None:
        self.waits = False
        self._request.label = label
        self._step(self._found)
