"""A backend that is asked by HTTP, without a connection."""

import orjson

from penstock.proxy.wire.questions import BODY_BYTES_MAX, Answer


class Told:
    """Whatever is asked, this is the answer, cut where a connection would cut it."""

    def __init__(self, answer: bytes | Answer, posted: Answer | None = None) -> None:
        self._answer = answer
        self._posted = posted
        self.asked: list[object] = []

    async def get(self, path: bytes, timeout_s: float, limit_bytes: int = BODY_BYTES_MAX) -> Answer:
        self.asked.append(path)
        if isinstance(self._answer, Answer):
            return self._answer
        body = self._answer
        return Answer(200, body[:limit_bytes], whole=len(body) <= limit_bytes)

    async def post(
        self, path: bytes, body: bytes, timeout_s: float, fields: bytes = b"", limit_bytes: int = 0
    ) -> Answer:
        assert self._posted is not None
        self.asked.append((path, orjson.loads(body)))
        return self._posted

    def hang_up(self) -> None:
        pass
