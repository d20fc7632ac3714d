"""The parent of the process that serves. A restart starts the next process beside it.

The parent holds the listening socket, and reads neither the configuration nor a request. The next
process loads its configuration and asks each backend once. Then the present one stops accepting and
hands over, and the next one accepts. What cannot start changes nothing. The former one ends by
itself when its streams have ended.

Parent and process speak in words over a socket pair; `handover.py` is the other side. The parent
imports next to nothing, so it is small, and hardly ever needs a restart itself.
"""

import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from time import gmtime, monotonic
from typing import Final

from penstock.proxy.process.listening import inherited

logger = logging.getLogger("penstock.supervisor")

# Environment variables of a process: the descriptors of its channel and of the listening socket.
CHANNEL: Final = "SUPERVISED_CHANNEL_FD"
DATA: Final = "SUPERVISED_DATA_FD"
# From a process: it could serve; it has handed over; it accepts (with the socket); a restart; how
# many requests it still has.
PREPARED: Final = b"prepared"
LEFT: Final = b"left"
LISTENING: Final = b"listening"
RESTART: Final = b"restart"
HOLDS: Final = b"holds"
# To a process: it may accept; it is to hand over; its follower ended (and with which status); how
# many requests a former process (its number) still has.
GO: Final = b"go"
LEAVE: Final = b"leave"
FAILED: Final = b"failed"
FORMER: Final = b"former"
WORD_BYTES_MAX: Final = 64

# The present process closes its ports and writes its state within milliseconds.
LEAVE_S: Final = 10.0
# A process that ends by itself is replaced: at once, and after a growing pause if that goes on.
PAUSE_MAX_S: Final = 30.0
LASTED_S: Final = 60.0


class Worker:
    """One process, and the channel to it."""

    def __init__(self, command: Sequence[str], listening: socket.socket | None) -> None:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setblocking(False)
        handed = [its.fileno()] + ([listening.fileno()] if listening is not None else [])
        environ = os.environ | {CHANNEL: str(its.fileno())}
        environ |= {DATA: str(listening.fileno())} if listening is not None else {}
        # A terminal's Ctrl-C is for the parent, which tells its processes once.
        self.process = subprocess.Popen(  # noqa: S603 - this program itself
            command, pass_fds=handed, env=environ, start_new_session=True
        )
        its.close()
        self.channel = mine
        self.began_s = monotonic()

    def say(self, word: bytes) -> None:
        """A process that has ended hears nothing; its end is seen anyway."""
        try:
            self.channel.send(word)
        except OSError:
            return

    def hear(self) -> tuple[bytes, list[int]] | None:
        """The next word and the descriptors with it. None: there is none."""
        try:
            word, descriptors, _, _ = socket.recv_fds(self.channel, WORD_BYTES_MAX, 1)
        except OSError:
            return None
        return (word, descriptors) if word else None


class Supervisor:
    """Starts processes and lets each new one take over from the present one."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._listening = inherited("data")  # from a service manager
        self._present: Worker | None = None
        self._next: Worker | None = None
        self._former: list[Worker] = []
        self._stopping = False
        self._leave_by_s: float | None = None  # when the present one must have handed over
        self._start_at_s: float | None = None  # a pause ends
        self._pause_s = 0.0
        self._status = 0
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Serve until SIGTERM or SIGINT, and until every process has ended. Returns the status.

        SIGUSR2 restarts, SIGHUP is for the present process.
        """
        waker, woken = socket.socketpair()
        waker.setblocking(False)
        woken.setblocking(False)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)
        for each in signals:
            signal.signal(each, lambda *_: None)  # `_signalled` does the work
        self._selector.register(woken, selectors.EVENT_READ, None)
        self._start()
        while self._workers() or self._start_at_s is not None:
            for key, _ in self._selector.select(self._wait_s()):
                if key.data is None:
                    for number in woken.recv(256):
                        self._signalled(number)
                else:
                    self._heard(key.data)
            self._reap()
            self._due()
        return self._status

    def _workers(self) -> list[Worker]:
        waiting = [each for each in (self._present, self._next) if each is not None]
        return [*waiting, *self._former]

    def _start(self) -> None:
        self._start_at_s = None
        self._next = worker = Worker(self._command, self._listening)
        self._selector.register(worker.channel, selectors.EVENT_READ, worker)

    def _restart(self) -> None:
        if self._next is None and not self._stopping:
            logger.info("a restart was asked for, the next process starts")
            self._start()

    def _signalled(self, number: int) -> None:
        if number == signal.SIGUSR2:
            self._restart()
        elif number == signal.SIGHUP and self._present is not None:
            self._present.process.send_signal(signal.SIGHUP)
        elif number in (signal.SIGTERM, signal.SIGINT):
            self._stopping, self._start_at_s = True, None
            if self._listening is not None:  # or clients would wait in it for nobody
                self._listening.close()
                self._listening = None
            for worker in self._workers():
                worker.process.send_signal(signal.SIGTERM)

    def _heard(self, worker: Worker) -> None:
        while (heard := worker.hear()) is not None:
            word, descriptors = heard
            if word == PREPARED and worker is self._next:
                if self._present is None:
                    worker.say(GO)
                else:
                    self._leave_by_s = monotonic() + LEAVE_S
                    self._present.say(LEAVE)
            elif word == LEFT and worker is self._present:
                self._retire()
            elif word == LISTENING and worker is self._next:
                self._take(worker, descriptors)
            elif word == RESTART and worker is self._present:
                self._restart()
            elif word.startswith(HOLDS) and worker in self._former:
                self._tell_of(worker, word.removeprefix(HOLDS).strip())
            else:
                for each in descriptors:
                    os.close(each)

    def _tell_of(self, former: Worker, requests: bytes) -> None:
        if self._present is not None:
            self._present.say(b"%b %d %b" % (FORMER, former.process.pid, requests))

    def _retire(self) -> None:
        """The present process has handed over, or is too late: the next one may go."""
        self._leave_by_s = None
        if self._present is not None:
            self._former.append(self._present)
            self._present = None
        if self._next is not None:
            self._next.say(GO)

    def _take(self, worker: Worker, descriptors: list[int]) -> None:
        """The next process accepts. It sends the socket that it listens on."""
        self._present, self._next = worker, None
        if descriptors:
            if self._listening is not None:
                self._listening.close()
            self._listening = socket.socket(fileno=descriptors[0])
        logger.info("process %d serves", worker.process.pid)

    def _reap(self) -> None:
        for worker in self._workers():
            status = worker.process.poll()
            if status is None:
                continue
            self._heard(worker)  # its last words
            self._selector.unregister(worker.channel)
            worker.channel.close()
            self._ended(worker, status)

    def _ended(self, worker: Worker, status: int) -> None:
        if worker in self._former:
            self._former.remove(worker)
            self._tell_of(worker, b"0")
            logger.info("former process %d has ended", worker.process.pid)
            return
        if worker is self._next:
            self._next = None
            self._leave_by_s = None
            if self._present is not None:
                logger.error("the next process ended with status %d, the present goes on", status)
                self._present.say(b"%b %d" % (FAILED, status))
                return
        else:
            self._present = None
        self._status = status if status >= 0 else 128 - status
        if self._stopping or self._next is not None:
            return
        if self._listening is None:  # nothing has ever served: the command is wrong
            self._stopping = True
            return
        lasted = monotonic() - worker.began_s >= LASTED_S
        self._pause_s = 0.0 if lasted else min(PAUSE_MAX_S, 2 * self._pause_s or 0.5)
        logger.error("process %d ended with status %d, another starts", worker.process.pid, status)
        self._start_at_s = monotonic() + (0.0 if lasted else self._pause_s - 0.5)

    def _wait_s(self) -> float | None:
        due = [each for each in (self._leave_by_s, self._start_at_s) if each is not None]
        return max(0.0, min(due) - monotonic()) if due else None

    def _due(self) -> None:
        now_s = monotonic()
        if self._leave_by_s is not None and now_s >= self._leave_by_s:
            logger.error("the present process did not hand over within %g s", LEAVE_S)
            if self._present is not None:
                self._present.process.send_signal(signal.SIGTERM)
            self._retire()
        if self._start_at_s is not None and now_s >= self._start_at_s and not self._stopping:
            self._start()


def main() -> int:
    """Supervise `penstock` with these arguments, as it is installed whenever a process starts."""
    logging.Formatter.converter = gmtime
    form = "%(asctime)s.%(msecs)03dZ %(levelname)s supervisor %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, datefmt="%Y-%m-%dT%H:%M:%S")
    return Supervisor([sys.executable, "-P", "-m", "penstock.proxy", *sys.argv[1:]]).run()


if __name__ == "__main__":
    sys.exit(main())
