"""One backend of a pool under watch, with answers and a clock of the test's."""

from collections.abc import Callable
from random import Random

from penstock.balancing.ask import Ask
from penstock.balancing.backend import Backend, State
from penstock.balancing.engine_report import EngineReport
from penstock.balancing.lease import Lease
from penstock.conf.health import DeepProbeSettings, HealthSettings
from penstock.health.probes import Outcome, Prober, Task
from penstock.health.watch import Watch

OK = Outcome(models={"m": b"{}"})
TIMEOUT = Outcome("timeout")
REFUSED = Outcome("unreachable", certain=True)
HUNG = Outcome("hung")
FAILING = Outcome("failing")


def _nothing() -> None:
    pass


class Backends(Prober):
    """Answers as told; `during_…` is what happens while a probe is under way."""

    def __init__(self) -> None:
        self.live_is = Outcome()
        self.ready_is = OK
        self.deep_is = Outcome()
        self.version_is: str | None = "1"
        self.deep_asked = 0
        self.deep_timeout_s = 0.0
        self.report_is: EngineReport | None = None
        self.task_is = Task.COMPLETION
        self.tasks_were: list[Task | None] = []
        self.during_live: Callable[[], None] = _nothing
        self.during_deep: Callable[[], None] = _nothing

    async def live(self, timeout_s: float) -> Outcome:
        self.during_live()
        return self.live_is

    async def ready(self, timeout_s: float) -> Outcome:
        return self.ready_is

    async def deep(
        self, model: str, task: Task | None, timeout_s: float
    ) -> tuple[Task | None, Outcome]:
        assert model == "m"
        self.deep_asked += 1
        self.deep_timeout_s = timeout_s
        self.tasks_were.append(task)
        self.during_deep()
        return self.task_is, self.deep_is

    async def version(self, timeout_s: float) -> str | None:
        return self.version_is

    async def report(self, timeout_s: float, now_s: float) -> EngineReport | None:
        return self.report_is


class Scene:
    """One backend of a pool of `count`, watched, at `now_s`."""

    def __init__(
        self,
        count: int = 4,
        models: tuple[str, ...] = (),
        deep_interval_s: float = 10.0,
        client: str = "",
    ) -> None:
        """`client`: whose all requests are; each has one of its own where it is not told."""
        self.now_s = 1_000.0
        self._client = client
        self._clients = 0
        self.ask = Backends()
        self.peers = [Backend(f"b{i}", f"http://b{i}") for i in range(count)]
        for peer in self.peers[1:]:
            peer.state = State.READY
        self.backend = self.peers[0]
        settings = HealthSettings(deep=DeepProbeSettings(interval_s=deep_interval_s))
        self.watch = Watch(
            self.backend, self.peers, models, settings, Random(1), lambda: self.now_s
        )

    async def turn(self, times: int = 1, step_s: float = 0.0) -> State:
        for _ in range(times):
            self.now_s += step_s
            await self.watch.turn(self.ask)
        return self.backend.state

    def lease(self, tokens: int = 100, client: str = "") -> Lease:
        """A request of the scene's client, or of one of its own, unless `client` tells whose."""
        self._clients += 1
        client = client or self._client or f"10.0.0.{self._clients}"
        ask = Ask("/", prompt_tokens=tokens, stream=True, client=client)
        return Lease(self.backend, ask, self.now_s)

    def stream(self) -> Lease:
        """A request that has had its first token."""
        lease = self.lease()
        lease.first_token(self.now_s)
        return lease

    def fail(self, times: int = 1, tokens: int = 0) -> None:
        """Send requests one after another, each after the same number of tokens."""
        for _ in range(times):
            lease = self.stream() if tokens else self.lease()
            lease.tokens(tokens)
            assert lease.fail(self.now_s)
            self.watch.requests_failed()
