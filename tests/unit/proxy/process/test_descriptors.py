"""How many clients a number of descriptors is enough for, and where a memory limit is told."""

import errno
from pathlib import Path

import pytest

from penstock.proxy.admin.visitors import ACCEPTED_MAX, VISITORS_MAX
from penstock.proxy.data.clients import EVERYBODY, EXCESS_MAX
from penstock.proxy.process import descriptors
from penstock.proxy.process.descriptors import covered, needed
from penstock.proxy.process.pressure import group_limit_bytes, resident_bytes, trim
from penstock.proxy.wire.pool import IDLE_MAX


@pytest.mark.parametrize("backends", [1, 4, 64, 1_000])
@pytest.mark.parametrize("connections", [1, 100, 2_000, 10_000, 1_000_000])
def test_what_is_needed_covers_them(connections: int, backends: int) -> None:
    assert covered(needed(connections, backends), backends) == connections
    assert covered(needed(connections, backends) - 1, backends) < connections


def test_each_client_may_have_a_backend_and_some_are_only_told() -> None:
    assert needed(1_000, 1) >= 2 * 1_000 + EXCESS_MAX


def test_the_admin_ports_clients_and_probes_have_theirs() -> None:
    spare = needed(1_000, 10) - needed(1_000, 0) - min(10 * IDLE_MAX, 1_000)
    assert spare >= 2 * 10  # a probe and a scrape of each
    assert needed(0, 0) - EXCESS_MAX >= VISITORS_MAX + ACCEPTED_MAX + 16


def test_too_few_for_anybody() -> None:
    assert covered(64, 1) == 0


class Limits:
    """The system's limits, as the module asks for them."""

    def __init__(self, soft: int, hard: int) -> None:
        self.now = (soft, hard)
        self.RLIM_INFINITY = -1
        self.RLIMIT_NOFILE = 7

    def getrlimit(self, which: int) -> tuple[int, int]:
        return self.now

    def setrlimit(self, which: int, limits: tuple[int, int]) -> None:
        assert limits[1] == self.now[1] < 0 or limits[0] <= limits[1]
        self.now = limits


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "fit", "after"),
    [
        (1_024, 4_096, 100, covered(1_024, 1), 1_024),  # enough: left alone
        (1_024, 100_000, 10_000, 10_000, needed(10_000, 1)),
        (1_024, -1, 10_000, 10_000, needed(10_000, 1)),
        (-1, -1, 10_000, EVERYBODY, -1),
        (1_024, 4_096, 10_000, covered(4_096, 1), 4_096),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_must_be(
    soft: int, hard: int, wanted: int, fit: int, after: int
) -> None:
    limits = Limits(soft, hard)
    assert descriptors.secure(wanted, 1, limits) == fit
    assert limits.now == (after, hard)


def test_serving_nobody_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(OSError, match=r"64 file descriptors are too few.*ulimit -n") as raised:
        descriptors.secure(10, 1, Limits(64, 64))
    assert raised.value.errno == errno.EMFILE


@pytest.mark.parametrize(
    ("fit", "chosen", "level"),
    [
        (10_000, True, None),
        (9_644, True, "WARNING"),  # fewer than somebody wanted
        (9_644, False, "INFO"),
        (4_999, False, "WARNING"),
    ],
)
def test_fewer_clients_than_the_default_is_a_warning_only_where_it_matters(
    fit: int, chosen: bool, level: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    descriptors.warn(10_000, 2, fit, chosen=chosen)
    assert [each.levelname for each in caplog.records] == ([level] if level else [])


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    """A tree of control groups: /pods (2 GiB) / proxy (1 GiB) / inner (no limit)."""
    inner = tmp_path / "pods" / "proxy" / "inner"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text(f"{2**30}\n")
    (inner.parent.parent / "memory.max").write_text(f"{2**31}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("own", "limit_bytes"),
    [
        ("0::/pods/proxy/inner\n", 2**30),
        ("0::/pods\n", 2**31),
        ("4:memory:/pods/proxy\n0::/pods/proxy\n", 2**30),
        ("0::/\n", 0),
        ("0::/elsewhere\n", 0),
        ("", 0),
    ],
)
def test_the_least_limit_on_the_way_up_counts(groups: Path, own: str, limit_bytes: int) -> None:
    membership = groups / "cgroup"
    membership.write_text(own)
    assert group_limit_bytes(groups, membership) == limit_bytes


def test_a_container_sees_its_own_group_as_the_root(groups: Path) -> None:
    (groups / "cgroup").write_text("0::/\n")
    (groups / "memory.max").write_text("1000000\n")
    assert group_limit_bytes(groups, groups / "cgroup") == 1_000_000


def test_no_control_groups_no_limit(tmp_path: Path) -> None:
    assert group_limit_bytes(tmp_path, tmp_path / "none") == 0


def test_memory_is_measured_and_given_back() -> None:
    trim()  # or what others have freed would be used first
    before = resident_bytes()
    held = [bytes(range(256)) * 16 for _ in range(20_000)]  # 80 MB in pieces of 4 KB
    full = resident_bytes()
    assert full - before > 60_000_000
    del held
    trim()
    assert resident_bytes() - before < 20_000_000
