"""A process that a supervisor has started: it takes over, and hands over to the next one.

See `supervisor.py` for the order of the words.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Final

from penstock.proxy.process.supervisor import (
    CHANNEL,
    DATA,
    FAILED,
    FORMER,
    GO,
    HOLDS,
    LEAVE,
    LEFT,
    LISTENING,
    PREPARED,
    RESTART,
    WORD_BYTES_MAX,
)

logger = logging.getLogger(__name__)

# A new process loads its configuration, and asks each backend once.
RESTART_S: Final = 60.0
TELL_S: Final = 1.0


class Handover:
    """The channel to the supervisor. `leave` is set when the next process is to take over.

    `former`: how many requests each former process still has, by its number.
    """

    def __init__(self, channel: socket.socket, inherited: socket.socket | None) -> None:
        self.inherited = inherited
        self.leave = asyncio.Event()
        self.former: dict[int, int] = {}
        self._channel = channel
        self._may_go = asyncio.Event()
        self._alone = False  # the supervisor has ended
        self._restart: asyncio.Future[str] | None = None
        channel.setblocking(False)
        asyncio.get_running_loop().add_reader(channel, self._hear)

    async def take(self) -> None:
        """Return when this process may accept, and have what the present one leaves."""
        self._say(PREPARED)
        await self._may_go.wait()

    def listens(self, sock: socket.socket) -> None:
        """This process accepts. The next one gets this socket."""
        try:
            socket.send_fds(self._channel, [LISTENING], [sock.fileno()])
        except OSError as error:
            logger.warning("the supervisor is gone error=%s", error)

    def left(self) -> None:
        """The next process may have the ports and the files."""
        self._say(LEFT)
        if self._restart is not None and not self._restart.done():
            self._restart.set_result("")

    async def tell(self, requests: Callable[[], int]) -> None:
        """Tell the next process each second how many requests this one still has."""
        while not self._alone:
            self._say(b"%b %d" % (HOLDS, requests()))
            await asyncio.sleep(TELL_S)

    async def restart(self) -> str:
        """Have the next process take over. Returns when it does, or why it does not."""
        if self._alone:
            return "there is no supervisor any more"
        if self._restart is None or self._restart.done():
            self._restart = asyncio.get_running_loop().create_future()
            self._say(RESTART)
        try:
            async with asyncio.timeout(RESTART_S):
                return await asyncio.shield(self._restart)
        except TimeoutError:
            return "the next process does not answer; its log tells why"

    def _say(self, word: bytes) -> None:
        try:
            self._channel.send(word)
        except OSError as error:
            logger.warning("the supervisor is gone error=%s", error)

    def _hear(self) -> None:
        try:
            word = self._channel.recv(WORD_BYTES_MAX)
        except OSError:
            word = b""
        if word == GO:
            self._may_go.set()
        elif word == LEAVE:
            self.leave.set()
        elif word.startswith(FAILED):
            self._failed(word[len(FAILED) :].decode().strip())
        elif word.startswith(FORMER):
            process, requests = map(int, word.split()[1:])
            self.former[process] = requests
            if not requests:
                del self.former[process]
        elif not word:
            asyncio.get_running_loop().remove_reader(self._channel)
            self._alone = True
            logger.warning("the supervisor has ended: this process goes on without one")
            self._may_go.set()

    def _failed(self, status: str) -> None:
        logger.error("not restarted: the next process ended with status %s", status)
        if self._restart is not None and not self._restart.done():
            self._restart.set_result(f"the next one ended with status {status}; its log tells why")


def handover() -> Handover | None:
    """The channel that the environment names. None: no supervisor has started this process."""
    environ = os.environ
    if not environ.get(CHANNEL, "").isdecimal():
        return None
    channel, data = _socket(environ[CHANNEL]), environ.get(DATA, "")
    return Handover(channel, _socket(data) if data.isdecimal() else None)


def _socket(descriptor: str) -> socket.socket:
    """Raises OSError."""
    os.set_inheritable(int(descriptor), False)
    return socket.socket(fileno=int(descriptor))
