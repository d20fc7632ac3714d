"""What an exporter of GPU metrics tells."""

import asyncio
import logging
from random import Random

import pytest

from penstock.balancing.backend import Backend
from penstock.balancing.engine_report import GpuReport
from penstock.health.probes import Client
from penstock.health.scrape import SERIES_MAX, TooLarge
from penstock.proxy.process import gpu_exporters
from penstock.proxy.process.gpu_exporters import Exporter, Gpus, read_gpus
from penstock.proxy.wire.questions import Answer
from tests.unit.health.told import Told

DCGM = b"""\
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA H100"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-2",device="nvidia1",modelName="NVIDIA H100"} 70
# HELP DCGM_FI_DEV_FB_FREE Framebuffer memory free (in MiB).
# TYPE DCGM_FI_DEV_FB_FREE gauge
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA H100"} 1000
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-2",device="nvidia1",modelName="NVIDIA H100"} 24
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA H100"} 70000
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-2",device="nvidia1",modelName="NVIDIA H100"} 70001
"""


def test_several_gpus_are_one_backends() -> None:
    assert read_gpus(DCGM, 9.0) == GpuReport(9.0, 0.8, 140_001 << 20, 1_024 << 20)


def test_what_is_missing_is_unknown() -> None:
    assert read_gpus(b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 5', 9.0) == GpuReport(9.0, 0.05)
    assert read_gpus(b"up 1\n", 9.0) is None
    assert read_gpus(b"", 9.0) is None


@pytest.mark.parametrize("value", [b"NaN", b"-1", b"", b"many", b"1e300"])
def test_what_is_no_number_is_left_out(value: bytes) -> None:
    report = read_gpus(DCGM.replace(b"} 90", b"} " + value), 9.0)
    assert report is not None
    assert report.utilization == 0.7


def test_no_share_is_more_than_the_whole() -> None:
    report = read_gpus(DCGM.replace(b"} 90", b"} 1e17"), 9.0)
    assert report is not None
    assert report.utilization == 1.0


def test_more_gpus_than_any_machine_has_are_refused() -> None:
    line = b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 5\n'
    with pytest.raises(TooLarge):
        read_gpus(line * (SERIES_MAX + 1), 9.0)


class AtOnce(Random):
    def random(self) -> float:
        return 0.0


class Refusing(Told):
    """Nobody listens there."""

    tls: object = None

    def __init__(self) -> None:
        super().__init__(Answer(reason="unreachable", certain=True))

    def questions(self, authorization: bytes | None = None) -> Client:
        return self


async def test_an_exporter_that_never_answers_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    backend, nobody = Backend("gpu-0", ""), Refusing()
    monkeypatch.setattr(gpu_exporters, "SCRAPE_S", 0.0)
    monkeypatch.setattr(gpu_exporters, "SCRAPE_S_PER_BACKEND", 0.0)
    gpus = Gpus(AtOnce())
    gpus.use({backend: Exporter("http://192.0.2.1:9400/metrics", nobody)})
    async with asyncio.timeout(5):
        while len(nobody.asked) < 3:
            await asyncio.sleep(0)
    (line,) = [each.getMessage() for each in caplog.records if each.name == gpu_exporters.__name__]
    assert line == "GPU metrics cannot be read name=gpu-0 reason=unreachable"
    await gpus.stop()


async def test_what_was_told_of_a_backend_goes_with_its_exporter() -> None:
    backend, gpus = Backend("gpu-0", ""), Gpus(AtOnce())
    first = Exporter("http://192.0.2.1:9400/metrics", Refusing())
    gpus.use({backend: first})
    report = GpuReport(9.0, 0.5)
    other = Exporter("http://192.0.2.2:9400/metrics", first.connections)
    kept = []
    for exporters in ({backend: first}, {backend: other}, {}):
        backend.gpus = report
        gpus.use(exporters)
        kept.append(backend.gpus)
    assert kept == [report, None, None]
    await gpus.stop()
