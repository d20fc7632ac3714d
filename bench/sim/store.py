"""What a server remembers, bounded: finished responses, the last requests, what they took."""

from collections import OrderedDict, deque
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from penstock.bench.sim.request import Request

RESPONSES_MAX: Final = 1_024
SEEN_MAX: Final = 64
WORK_MAX: Final = 2_048


@dataclass(slots=True)
class Kept:
    """A response and the conversation up to its end."""

    response: dict[str, Any]
    conversation: list[Any]


class ResponseStore:
    """Finished /v1/responses by id; the oldest go first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def put(self, response: dict[str, Any], conversation: list[Any]) -> None:
        self._kept[response["id"]] = Kept(response, conversation)
        if len(self._kept) > RESPONSES_MAX:
            self._kept.popitem(last=False)

    def get(self, response_id: str) -> Kept | None:
        return self._kept.get(response_id)


@dataclass(frozen=True, slots=True)
class Work:
    """What one request took of the engine. `whole`: it had all of its answer."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    whole: bool


class Seen(deque[Request]):
    """The last requests, as received."""

    def __init__(self) -> None:
        super().__init__(maxlen=SEEN_MAX)

    def listing(self) -> list[dict[str, Any]]:
        return [
            {
                "line": request.line,
                "headers": [[n.decode("latin-1"), v.decode("latin-1")] for n, v in request.headers],
                "body_bytes": len(request.body),
                "body_sha256": sha256(request.body).hexdigest(),
            }
            for request in self
        ]
