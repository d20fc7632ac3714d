"""What the proxy tells of itself, and of a backend beside its peers."""

import contextlib
from typing import Any

import pytest

from penstock.balancing.speed.compare import ALIKE, Pace
from penstock.conf.issues import ConfigError, Issue
from penstock.proxy.admin.listings import proxy_listing
from penstock.proxy.admin.verdicts import Verdicts
from penstock.proxy.reload.reload import Reload
from tests.unit.proxy.data.playbook import DONE, END, STREAM, Play, chat, token


class Failing(Reload):
    """Each reload ends at once, by `problem`."""

    problem = ""

    async def _reload(self) -> Any:
        raise ConfigError([Issue("penstock.yaml", (), self.problem)])


def test_the_proxy_tells_its_age_its_requests_and_its_last_reload(play: Play) -> None:
    nothing: Any = None
    reload = Failing(nothing, play.plane, nothing, nothing, nothing, nothing)
    told = proxy_listing(play.plane, reload, "ready", {})
    assert (told["up_s"], told["open_requests"], told["last_reload"]) == (0.0, 0, None)
    play.client.sends(chat())
    play.passes(2)
    told = proxy_listing(play.plane, reload, "ready", {})
    assert (told["up_s"], told["open_requests"]) == (2.0, 1)
    play["b1"].sends(STREAM, token("a"), DONE, END)
    reload.problem = "is wrong"
    with pytest.raises(ConfigError):
        play.loop.run_until_complete(reload())
    play.passes(3)
    told = proxy_listing(play.plane, reload, "ready", {})
    last: Any = told["last_reload"]
    assert (told["open_requests"], last["age_s"], last["succeeded"]) == (0, 3.0, False)
    assert told["reload_failed"] == ("penstock.yaml: is wrong",)
    since: Any = told["since"]
    assert last["at"] == pytest.approx(since + 2.0, abs=0.1)


def test_a_backend_is_slower_only_than_peers_that_were_compared_too() -> None:
    with contextlib.closing(Play(2)) as play:
        verdicts, (first, second) = Verdicts(play.plane), play.backends
        assert verdicts.pace(first) is None
        verdicts._paces["p"] = {first: ALIKE}
        assert verdicts.pace(first) is None
        verdicts._paces["p"] = {first: Pace(3.0, 1.0), second: ALIKE}
        assert (verdicts.pace(first), verdicts.pace(second)) == (Pace(3.0, 1.0), ALIKE)
