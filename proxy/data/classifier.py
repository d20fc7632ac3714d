"""The classifier, asked over HTTP on connections of its own.

Whatever it does costs its deadline and a few kilobytes at most: it may be slow, hung or dead, or
answer with garbage.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.balancing.labels.labels import label_in
from penstock.conf.classifier import ClassifierSettings
from penstock.proxy.wire.handshakes import HandshakeThreads
from penstock.proxy.wire.host import Names
from penstock.proxy.wire.pool import ConnectionPool
from penstock.proxy.wire.questions import Questions

ANSWER_BYTES_MAX: Final = 4_096


class Classifier:
    """Asks one classifier. `tls`: for one with https."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        settings: ClassifierSettings,
        tls: ssl.SSLContext | None,
        now: Callable[[], float],
    ) -> None:
        self._deadline_s = settings.deadline_ms / 1e3
        # Threads and look-ups of its own: a broken classifier delays no backend's.
        self._connections = ConnectionPool(
            loop,
            settings.url,
            connect_timeout_s=self._deadline_s,
            name="classifier",
            names=Names(),
            threads=HandshakeThreads(loop),
            tls=tls,
            now=now,
        )
        self._idle: list[Questions] = []
        self._closed = False

    async def ask(self, question: str) -> tuple[str | None, str]:
        """The label that it gives. None: it gives none in time, and why."""
        asked = self._idle.pop() if self._idle else self._connections.questions()
        body = msgspec.json.encode({"text": question})
        answer = await asked.post(b"", body, self._deadline_s, b"", ANSWER_BYTES_MAX)
        label, reason = None, "no_label"
        if answer.reason:
            reason = answer.reason
        elif answer.status != 200:
            reason = f"status_{answer.status}"
        elif answer.whole:
            label = label_in(answer.body)
        if label is None or self._closed:
            asked.hang_up()
        else:
            self._idle.append(asked)
        return label, reason

    def close(self) -> None:
        """Close what is idle. A question that is asked now goes on to its deadline."""
        self._closed = True
        while self._idle:
            self._idle.pop().hang_up()
        self._connections.close()
