"""Has requests labelled by the classifier, where their routes ask for labels.

A request waits for its label no longer than the classifier's deadline. When its client leaves, the
question goes on: who leaves early must not have more questions asked than who waits.
"""

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.balancing.labels import Labels, label_in, question_of
from penstock.conf.classifier import ClassifierSettings
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.wire.handshakes import HandshakeThreads
from penstock.proxy.wire.host import Names
from penstock.proxy.wire.pool import ConnectionPool
from penstock.proxy.wire.questions import Questions

logger = logging.getLogger(__name__)

_KEY_BYTES: Final = 32
# Between two warnings: clients may make it fail as often as they like.
SILENT_S: Final = 60.0

Labelled = Callable[[str | None], None]


ANSWER_BYTES_MAX: Final = 4_096


class Classifier:
    """Asks one classifier, on connections of its own. `tls`: for one with https.

    Whatever it does costs its deadline and a few kilobytes at most: it may be slow, hung or dead,
    or answer with garbage.
    """

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


class Labelling:
    """The classifier of the configuration in use, and what it has said."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, metrics: Metrics, now: Callable[[], float]
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._now = now
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._settings: ClassifierSettings | None = None
        self._tls: ssl.SSLContext | None = None
        self._classifier: Classifier | None = None
        self._labels = Labels(1, self._key)
        self._tasks: set[asyncio.Task[None]] = set()
        self._silent_until_s = 0.0  # nothing is logged before
        self.on = False  # whether there is a classifier, and some route asks for a label

    def use(
        self, settings: ClassifierSettings | None, tls: ssl.SSLContext | None, *, wanted: bool
    ) -> None:
        """Ask this classifier from now on. `wanted`: some route asks for a label."""
        self.on = settings is not None and wanted
        if settings == self._settings and tls is self._tls:
            return
        self._close()
        if settings is not None:
            self._classifier = Classifier(self._loop, settings, tls, self._now)
        if settings is not None and settings != self._settings:
            self._labels = Labels(settings.cache_entries, self._key)
        self._settings, self._tls = settings, tls  # each reload reads the certificates anew

    def submit(self, client: str, conversation: memoryview | None, labelled: Labelled) -> None:
        """Find the label of a request. `labelled` gets it, or None: in this call, or later."""
        classifier, settings, labels = self._classifier, self._settings, self._labels
        assert classifier is not None
        assert settings is not None
        now_s = self._now()
        question = question_of(conversation, settings.text_bytes) if conversation else ""
        mark = labels.mark(question.encode())
        known = labels.find(client, mark, now_s)
        if known is not None:
            self._metrics.labels.add("cached")
            labelled(known)
        elif not question or not labels.begin(client, now_s):
            self._metrics.labels.add("skipped")
            labelled(None)
        else:
            asking = self._ask(classifier, labels, client, mark, question, labelled)
            task = self._loop.create_task(asking)
            self._tasks.add(task)  # the loop itself does not keep tasks alive
            task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """End with the process. Nobody waits any more."""
        self._close()
        for task in self._tasks:
            task.cancel()

    def _close(self) -> None:
        """Who waits still gets a label."""
        if self._classifier is not None:
            self._classifier.close()
            self._classifier = None

    async def _ask(
        self,
        classifier: Classifier,
        labels: Labels,
        client: str,
        mark: bytes,
        question: str,
        labelled: Labelled,
    ) -> None:
        began_s, label, reason = self._now(), None, "ended"
        try:
            label, reason = await classifier.ask(question)
        except Exception as error:  # noqa: BLE001 - its text may quote the question
            logger.error("classifier not asked error=%s", type(error).__name__)
        finally:
            now_s = self._now()
            if labels.end(client, mark, label, now_s) and now_s >= self._silent_until_s:
                self._silent_until_s = now_s + SILENT_S
                logger.warning("the classifier fails, requests have no labels reason=%s", reason)
            self._metrics.labels.add("asked" if label is not None else "failed")
            self._metrics.classifier_s.observe(now_s - began_s)
            labelled(label)
