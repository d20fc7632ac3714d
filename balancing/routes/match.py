"""When a route matches: all its conditions hold."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.balancing.routes.request import RouteRequest
from penstock.conf.zones import Zone, minute_of_week

MATCHES: Final = ""
LABEL: Final = "label"


class Patterns:
    """Exact texts, and prefixes that end in a star. Text matches if one of them does, and no text
    matches none."""

    def __init__(self, written: Iterable[str]) -> None:
        self.written = tuple(written)
        self.exact = frozenset([each for each in self.written if not each.endswith("*")])
        self.prefixes = tuple([each[:-1] for each in self.written if each.endswith("*")])

    def match(self, text: str | None) -> bool:
        """Whether one of them matches."""
        if text is None:
            return False
        return text in self.exact or text.startswith(self.prefixes)


class Hours:
    """The minutes of a week, as bits, by a clock on the wall of some zone.

    Clocks that are put forward skip what is in between: a window from 02:00 to 03:00 does not come
    on that day. Clocks that are put back show an hour twice, and the window comes twice.
    """

    def __init__(self, minutes: int, zone: Zone) -> None:
        self.minutes = minutes
        self.zone = zone
        # The answer for one minute: to ask the zone costs more than all other conditions.
        self._looked_at = -1
        self._inside = False

    def hold(self, now_s: float) -> bool:
        """Whether it is now. `now_s`: Unix time."""
        minute = int(now_s // 60)
        if minute != self._looked_at:
            self._inside = bool(self.minutes >> minute_of_week(self.zone, now_s) & 1)
            self._looked_at = minute
        return self._inside


@dataclass(frozen=True, slots=True)
class Match:
    """The conditions of one route. None, or 0 bits: nothing is asked."""

    models: Patterns | None = None
    paths: Patterns | None = None
    headers: tuple[tuple[bytes, Patterns], ...] = ()
    tenants: frozenset[str] | None = None
    classes: frozenset[str] | None = None
    stream: bool | None = None
    tokens_min: int | None = None  # in the range of prompt tokens
    tokens_max: int | None = None  # above it
    needs: int = 0
    lacks: int = 0
    efforts: frozenset[str] | None = None
    users: Patterns | None = None
    sessions: Patterns | None = None
    hours: Hours | None = None
    labels: frozenset[str] | None = None

    @property
    def asks_only_for_models(self) -> bool:
        """Whether nothing but the model, and the tenant, decides."""
        texts = (self.paths, self.users, self.sessions, self.hours, self.classes, self.efforts)
        numbers = (self.stream, self.tokens_min, self.tokens_max, self.labels)
        given = [each for each in (*texts, *numbers) if each is not None]
        return not (given or self.headers or self.needs or self.lacks)

    def first_failed(self, request: RouteRequest) -> str:
        """The key of the first condition that does not hold, cheap ones first. MATCHES: all do."""
        ask = request.ask
        if self.models is not None and not self.models.match(ask.model):
            return "model"
        if self.stream is not None and self.stream != ask.stream:
            return "stream"
        if self.tenants is not None and ask.tenant not in self.tenants:
            return "tenant"
        if self.classes is not None and request.service_class not in self.classes:
            return "class"
        tokens = ask.prompt_tokens
        if self.tokens_min is not None and tokens < self.tokens_min:
            return "prompt_tokens"
        if self.tokens_max is not None and tokens >= self.tokens_max:
            return "prompt_tokens"
        if request.needs & self.needs != self.needs:
            return "needs"
        if request.needs & self.lacks:
            return "lacks"
        return self._first_text_failed(request)

    def _first_text_failed(self, request: RouteRequest) -> str:
        """The same for what takes longer."""
        if self.paths is not None and not self.paths.match(request.ask.path):
            return "path"
        if self.efforts is not None and request.effort not in self.efforts:
            return "effort"
        if self.users is not None and not self.users.match(request.user):
            return "user"
        if self.sessions is not None and not self.sessions.match(request.session):
            return "session"
        for name, patterns in self.headers:
            if not patterns.match(request.header(name)):
                return "headers"
        if self.hours is not None and not self.hours.hold(request.now_s):
            return "hours"
        # The last: a label is asked for only if all else holds.
        if self.labels is not None and request.label not in self.labels:
            return LABEL
        return MATCHES
