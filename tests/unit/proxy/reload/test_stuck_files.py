"""A file that does not open delays neither later reloads nor the end of the process."""

import asyncio
import threading
from dataclasses import dataclass
from random import Random

import pytest

from penstock.conf.issues import ConfigError
from penstock.conf.load import Loaded, load
from penstock.proxy.data.configuration import configure, draft
from penstock.proxy.data.plane import DataPlane
from penstock.proxy.reload.reload import Reload
from penstock.proxy.reload.retirement import Retirement
from penstock.proxy.reload.source import Source
from penstock.proxy.telemetry.metrics import Metrics
from penstock.proxy.wire.handshakes import HandshakeThreads
from penstock.proxy.wire.host import Names

READ_S = 0.01
POOLS = [{"name": "p", "backends": [{"name": "a", "url": "http://a:1"}]}]
opens = threading.Event()


@dataclass(frozen=True, slots=True)
class OfADeadServer(Source):
    """Its files open once `opens` is set."""

    def load(self) -> Loaded:
        opens.wait()
        return load(self.path, self.environ, self.flags)


async def test_a_file_that_does_not_open_is_told_and_the_next_reload_works() -> None:
    opens.clear()
    loop, names = asyncio.get_running_loop(), Names()
    source = OfADeadServer(None, {}, {"pools": POOLS})
    loaded = load(None, {}, source.flags)
    first = configure(draft(loaded.settings, loaded.origins, None), loop, names)
    metrics = Metrics([])
    plane = DataPlane(first, loop=loop, rng=Random(7), metrics=metrics)
    retirement = Retirement(metrics, lambda: plane.fleet)
    threads = HandshakeThreads(loop)
    others = set(threading.enumerate())  # another test's may not have ended yet
    reload = Reload(source, plane, retirement, plane.use, names, threads, read_s=READ_S)
    try:
        with pytest.raises(ConfigError, match="took more than"):
            await reload()
        assert "does one not open" in reload.failed[0]
        assert not metrics.config_reload_success
        stuck = [each for each in threading.enumerate() if each not in others]
        assert [(each.name, each.daemon) for each in stuck] == [
            ("reload", True)
        ]  # exit waits for none
    finally:
        opens.set()
    reload._read_s = 60.0
    await reload()
    assert reload.failed == ()
    assert metrics.config_reload_success
