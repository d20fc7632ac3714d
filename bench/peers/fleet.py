"""The simulated fleet behind all peers: one process, N servers of one profile."""

from contextlib import AbstractContextManager
from subprocess import DEVNULL, PIPE
from time import monotonic, sleep
from typing import Any, Final

import orjson

from penstock.bench.client import call
from penstock.bench.peers.peer import MODEL
from penstock.bench.processes import NotStarted, first_lines, python, start, stop

# What a peer has queued must be done within this before the next is measured.
REST_S: Final = 60.0
COUNTED: Final = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "cache_queries_total",
    "cache_hits_total",
)


class Fleet(AbstractContextManager["Fleet"]):
    """`with Fleet(4, "70b-4xh100", speedup=5.0) as fleet:` - its servers' ports in `ports`."""

    def __init__(
        self, servers: int, profile: str, speedup: float, kv_tokens: int | None = None
    ) -> None:
        """`kv_tokens`: the size of each KV cache, if it is not that of the profile."""
        command = python("penstock.proxy", "sim", "--port", "0", "--count", str(servers))
        command += ["--profile", profile, "--speedup", str(speedup), "--model", MODEL]
        if kv_tokens is not None:
            command += ["--kv-tokens", str(kv_tokens)]
        self._process = start(command, stdout=PIPE, stderr=DEVNULL)
        try:
            lines = first_lines(self._process.stdout, b"listening ", servers)
            self.ports = [int(line.split()[1].rpartition(":")[2]) for line in lines]
        except BaseException:
            stop(self._process)
            raise

    def __exit__(self, *exc: object) -> None:
        stop(self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fresh(self) -> bool:
        """Wait until all have nothing to do, and empty their caches; False if they never rest."""
        until_s = monotonic() + REST_S
        while any(state["running"] + state["waiting"] for state in self._states()):
            if monotonic() > until_s:
                return False
            sleep(0.05)
        for port in self.ports:
            _call(port, "POST", "/reset_prefix_cache")
        return True

    def work(self) -> list[dict[str, int]]:
        """What each server has done. Raises NotStarted when one is gone."""
        return [{name: state[name] for name in COUNTED} for state in self._states()]

    def _states(self) -> list[dict[str, Any]]:
        return [orjson.loads(_call(port, "GET", "/sim/state")) for port in self.ports]


def _call(port: int, method: str, path: str) -> bytes:
    try:
        return call(port, method, path)[1]
    except OSError as error:
        raise NotStarted(f"a simulated server is gone: {error}") from None
