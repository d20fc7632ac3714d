"""How much each kind of what fills the memory may take."""

import logging

import pytest

from penstock.proxy.data.memory import ENTRY_BYTES, PART_BYTES_MIN, PARTS, Memory
from penstock.proxy.wire.ledger import NO_LIMIT

MIB = 2**20
RESTING_BYTES = 60 * MIB


@pytest.mark.parametrize("limit_mib", [64, 96, 128, 256, 1_024, 16_384])
def test_all_parts_fit_beside_what_it_takes_without_clients(limit_mib: int) -> None:
    memory = Memory(limit_mib * MIB, RESTING_BYTES)
    if memory.part_bytes > PART_BYTES_MIN:
        tables_bytes = 4 * memory.entries(4) * ENTRY_BYTES
        assert RESTING_BYTES + PARTS * memory.part_bytes + tables_bytes <= 0.9 * limit_mib * MIB
    else:
        assert limit_mib == 64


def test_the_configuration_comes_before_the_control_group() -> None:
    memory = Memory(640 * MIB, RESTING_BYTES)
    memory.use(128 * MIB)
    assert memory.limit_bytes == 128 * MIB
    memory.use(None)
    assert memory.limit_bytes == 512 * MIB  # 80 % of it


def test_without_a_limit_nothing_is_limited(caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(0, RESTING_BYTES)
    memory.warn(2**32)
    assert (memory.part_bytes, memory.suffices, caplog.messages) == (NO_LIMIT, True, [])


def test_what_is_remembered_follows_the_memory() -> None:
    memories = [Memory(mib * MIB, RESTING_BYTES) for mib in (80, 120, 320, 2_560)]
    assert [memory.entries(2) for memory in memories] == [1, 563, 3_635, 38_041]
    assert memories[2].entries(4) == 3_635 // 2
    assert Memory(0, RESTING_BYTES).entries(2) == NO_LIMIT


def test_bodies_of_the_default_size_fit_a_container_of_320_mib() -> None:
    assert Memory(320 * MIB, RESTING_BYTES).part_bytes > 32 * MIB


@pytest.mark.parametrize(
    ("limit_mib", "level", "told"),
    [
        (80, logging.ERROR, "it is 64 MiB, and penstock takes 60 MiB without clients"),
        (160, logging.WARNING, "bodies above 13 MiB will be refused"),
        (640, 0, ""),
    ],
)
def test_what_does_not_fit_is_told(
    limit_mib: int, level: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Memory(limit_mib * MIB, RESTING_BYTES)
    memory.warn(32 * MIB)
    assert memory.suffices is (level != logging.ERROR)
    assert [record.levelno for record in caplog.records] == [level] * bool(level)
    assert told in caplog.text
