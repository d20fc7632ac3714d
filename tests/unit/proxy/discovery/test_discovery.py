"""What sources tell becomes part of the settings: what stays, what goes, when it is swapped."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from penstock.conf.discover import DiscoverSettings
from penstock.conf.settings import Settings
from penstock.proxy.discovery.discovery import AGAIN_S, KEPT_S, Discovery, Source
from penstock.proxy.discovery.found import Allowed, Entries, Found, Unusable

ANY = Entries(Allowed([]))


class Scripted:
    """A source that tells what a test says."""

    def __init__(self) -> None:
        self.tell: Callable[[Found | Unusable], None] = lambda answer: None

    async def watch(self, tell: Callable[[Found | Unusable], None]) -> None:
        self.tell = tell
        await asyncio.Event().wait()


def settings_of(*files: str, listed: tuple[str, ...] = ()) -> Settings:
    """A pool for each file, p0, p1 …; `listed` stand in the first one."""
    backends = [{"name": f"s{n}", "url": url} for n, url in enumerate(listed)]
    pools = [
        {"name": f"p{n}", "discover": {"file": file}, "backends": backends if n == 0 else []}
        for n, file in enumerate(files)
    ]
    return Settings.model_validate({"pools": pools})


class Stage:
    """A discovery whose sources tell what a test says."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sources: dict[str, Scripted] = {}
        self.swaps = self.faults = 0
        self.serving: set[str] = set()
        self.discovery = Discovery(
            lambda: self.now_s, lambda: self.serving, self._source_of, swap_s=0.0
        )

    def _source_of(self, settings: DiscoverSettings, prefix: str) -> tuple[str, Source]:
        assert settings.file is not None
        source = self.sources[settings.file] = Scripted()
        return "file", source

    async def _swapped(self) -> None:
        if self.faults:
            self.faults -= 1
            raise OSError("no descriptor is left")
        self.swaps += 1

    async def begin(self, settings: Settings) -> None:
        self.discovery.use(settings)
        await turns()
        await self.discovery.start(self._swapped, within_s=0.0)

    async def tells(self, file: str, *entries: object, whole: bool = False) -> None:
        self.sources[file].tell(ANY.found(entries, whole=whole))
        await turns()

    async def fails(self, file: str, why: str = "gone") -> None:
        self.sources[file].tell(Unusable(why))
        await turns()

    def names(self, settings: Settings) -> list[list[str]]:
        merged = self.discovery.merged(settings)
        return [[each.name for each in pool.backends] for pool in merged.pools]


@asynccontextmanager
async def stage(settings: Settings) -> AsyncIterator[Stage]:
    made = Stage()
    await made.begin(settings)
    yield made
    await made.discovery.stop()


async def turns() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


A, B, C = (f"http://10.0.0.{n}:80" for n in (1, 2, 3))


async def test_what_is_found_stands_beside_what_is_listed() -> None:
    settings = settings_of("f", listed=(A,))
    async with stage(settings) as on:
        await on.tells("f", A, B)
        assert on.names(settings) == [["s0", "10.0.0.2-80"]]
        assert on.swaps == 1


async def test_the_same_list_again_is_not_swapped() -> None:
    settings = settings_of("f")
    async with stage(settings) as on:
        await on.tells("f", A, B)
        await on.tells("f", A, B)
        assert on.swaps == 1
        await on.tells("f", A)
        assert on.swaps == 2
        assert on.names(settings) == [["10.0.0.1-80"]]


@pytest.mark.parametrize("served", [True, False])
async def test_where_all_are_replaced_the_former_ones_stay_until_a_new_one_serves(
    served: bool,
) -> None:
    settings = settings_of("f")
    async with stage(settings) as on:
        await on.tells("f", A)
        on.serving.add(A)
        await on.tells("f", B, C)
        assert on.names(settings) == [["10.0.0.2-80", "10.0.0.3-80", "10.0.0.1-80"]]
        if served:
            on.serving.add(C)
        else:
            on.now_s = KEPT_S
        await turns()
        assert on.names(settings) == [["10.0.0.2-80", "10.0.0.3-80"]]
        assert on.swaps == 3


async def test_a_failure_and_an_empty_list_keep_the_last_one() -> None:
    settings = settings_of("f")
    async with stage(settings) as on:
        await on.tells("f", A)
        on.now_s = 7.0
        await on.fails("f", "it cannot be read")
        on.now_s = 9.0
        (told,) = on.discovery.listing()
        assert (told["backends"], told["age_s"], told["problem"]) == (1, 9.0, "it cannot be read")
        await on.tells("f")
        assert on.names(settings) == [["10.0.0.1-80"]]
        (told,) = on.discovery.listing()
        assert told["problem"] == "it lists no backend"
        await on.tells("f", A)
        (told,) = on.discovery.listing()
        assert (told["age_s"], told["problem"]) == (0.0, None)
        assert on.swaps == 1


async def test_an_empty_list_of_a_source_that_knows_empties_the_pool() -> None:
    settings = settings_of("f")
    async with stage(settings) as on:
        await on.tells("f", A)
        await on.tells("f", whole=True)
        assert on.names(settings) == [[]]


async def test_a_source_that_told_nothing_yet_has_no_age() -> None:
    async with stage(settings_of("f")) as on:
        await on.fails("f", "no right to list: 403")
        assert list(on.discovery.ages()) == [("p0", "file", 0, None)]
        assert on.discovery.origin("p0", A) is None


async def test_since_when_a_backend_is_there() -> None:
    async with stage(settings_of("f")) as on:
        await on.tells("f", A)
        on.now_s = 50.0
        await on.tells("f", A, B)
        since = [on.discovery.origin("p0", url) for url in (A, B)]
        assert since[0] is not None
        assert since[1] is not None
        assert since[0]["source"] == "file"
        assert float(str(since[1]["since"])) - float(str(since[0]["since"])) == pytest.approx(
            50.0, abs=0.5
        )


async def test_a_source_that_is_changed_keeps_its_backends_until_a_new_one_serves() -> None:
    before, after = settings_of("f", "g"), settings_of("h", "g")
    async with stage(before) as on:
        await on.tells("f", A)
        await on.tells("g", B)
        kept = on.sources["g"]
        assert on.names(after) == [["10.0.0.1-80"], ["10.0.0.2-80"]]
        on.discovery.use(after)
        await turns()
        assert on.sources["g"] is kept
        on.now_s = 2 * KEPT_S
        await turns()
        assert on.names(after)[0] == ["10.0.0.1-80"]  # the new source has told nothing yet
        await on.tells("h", C)
        on.serving.add(C)
        await turns()
        assert on.names(after) == [["10.0.0.3-80"], ["10.0.0.2-80"]]


async def test_lists_that_follow_each_other_keep_what_serves_and_for_no_longer() -> None:
    settings = settings_of("f")
    async with stage(settings) as on:
        await on.tells("f", A)
        on.serving.add(A)
        await on.tells("f", B)
        on.now_s = KEPT_S - 1.0
        await on.tells("f", C)
        assert on.names(settings) == [["10.0.0.3-80", "10.0.0.1-80"]]
        on.now_s = KEPT_S
        await turns()
        assert on.names(settings) == [["10.0.0.3-80"]]


async def test_a_name_stays_with_the_pool_that_has_it() -> None:
    """A pool that comes first takes nothing from one that has found it before."""
    settings = settings_of("f", "g")
    async with stage(settings) as on:
        await on.tells("g", {"name": "a", "url": A})
        assert on.names(settings) == [[], ["a"]]
        await on.tells("f", {"name": "a", "url": B})
        assert on.names(settings) == [[], ["a"]]
        await on.tells("g", C)
        assert on.names(settings) == [["a"], ["10.0.0.3-80"]]


async def test_a_name_that_moves_to_another_server_is_there_once() -> None:
    settings = settings_of("f")
    async with stage(settings) as on:
        await on.tells("f", {"name": "a", "url": A})
        await on.tells("f", {"name": "a", "url": B})
        (pool,) = on.discovery.merged(settings).pools
        assert [(each.name, each.url) for each in pool.backends] == [("a", B)]


async def test_a_swap_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    settings = settings_of("f")
    async with stage(settings) as on:
        on.faults = 1
        await on.tells("f", A)
        async with asyncio.timeout(3 * AGAIN_S):
            while on.swaps < 1:
                await asyncio.sleep(0.01)
        assert "found backends were not put in use" in caplog.text


async def test_a_name_of_another_pool_is_left_out_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = settings_of("f", "g")
    async with stage(settings) as on:
        await on.tells("f", A)
        await on.tells("g", A, B)
        assert on.names(settings) == [["10.0.0.1-80"], ["10.0.0.2-80"]]
        assert caplog.text.count("the name 10.0.0.1-80 is taken") == 1
        assert on.discovery.listing()[1]["left_out"] == 1


async def test_the_loss_of_most_backends_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with stage(settings_of("f")) as on:
        await on.tells("f", A, B, C)
        await on.tells("f", A, B)
        assert "lost most" not in caplog.text
        with caplog.at_level(logging.WARNING):
            await on.tells("f", "http://10.0.0.9:80")
        assert "lost=2 left=0" in caplog.text


async def test_a_fault_of_a_source_is_logged_once() -> None:
    async with stage(settings_of("f")) as on:
        await on.fails("f")
        await on.fails("f")
        (told,) = on.discovery.listing()
        assert told["problem"] == "gone"
