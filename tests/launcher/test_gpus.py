"""GPUs as NVML tells them. There is no GPU here: a fake library answers, but for the test of its absence."""

import os

import pytest

from xl.launcher.gpus import GpuDetail, read_gpu_facts, read_gpus
from xl.launcher.hardware.gpu_links import GpuLink
from xl.launcher.machine import Gpu

from .fake_nvml import GIB, Device, FakeNvml, Memory


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="an NVIDIA driver is loaded")
def test_without_a_driver() -> None:
    facts = read_gpu_facts()
    assert facts.gpus == ()
    assert facts.problems == ("no NVIDIA driver found: libnvidia-ml.so.1 is not installed",)
    assert read_gpus() == ()


def test_one_gpu() -> None:
    nvml = FakeNvml([Device("GPU-a", memory=Memory(80 * GIB, 10 * GIB))])
    facts = read_gpu_facts(nvml)
    assert facts.gpus == (Gpu(0, "GPU-a", "NVIDIA H100 80GB HBM3", 80 * GIB, 10 * GIB),)
    assert facts.details == (GpuDetail((9, 0)),)
    assert (facts.driver_version, facts.driver_cuda) == ("580.65.06", (13, 1))
    assert facts.problems == ()
    assert nvml.open_sessions == 0


def test_mig_instances() -> None:
    instances = [Device("MIG-1", memory=Memory(20 * GIB, 20 * GIB)), Device("MIG-2", memory=None)]
    facts = read_gpu_facts(FakeNvml([Device("GPU-a", mig=instances), Device("GPU-b", mig=[])]))
    assert facts.gpus[0].mig == ("MIG-1", "MIG-2")
    assert facts.details[0].mig_memory_bytes == (20 * GIB, 0)
    assert facts.gpus[1].mig == ()


def test_what_a_driver_does_not_tell_is_left_out() -> None:
    facts = read_gpu_facts(FakeNvml([Device("GPU-a", memory=None, capability=None)]))
    assert (facts.gpus[0].memory_total_bytes, facts.gpus[0].memory_free_bytes) == (0, 0)
    assert facts.details == (GpuDetail(None),)


def test_a_lost_gpu_does_not_hide_the_others() -> None:
    nvml = FakeNvml([Device("GPU-a"), Device("GPU-b", lost=True), Device("GPU-c")], {(0, 2): 50})
    facts = read_gpu_facts(nvml)
    assert [gpu.index for gpu in facts.gpus] == [0, 2]
    assert facts.links == (GpuLink(0, 2, "SYS"),)
    assert facts.problems == ("GPU 1 does not answer: GPU is lost",)
    assert nvml.open_sessions == 0


def test_a_driver_that_does_not_answer() -> None:
    facts = read_gpu_facts(FakeNvml([Device("GPU-a")], broken=True))
    assert facts.gpus == ()
    assert facts.problems == ("the NVIDIA driver does not answer: Driver/library version mismatch",)


def test_links() -> None:
    nvml = FakeNvml(
        [Device("a", nvlinks=12), Device("b", nvlinks=12), Device("c"), Device("d")],
        {(0, 2): 10, (0, 3): 20, (1, 2): 30, (1, 3): 40},
        frozenset({(0, 1)}),
    )
    assert read_gpu_facts(nvml).links == (
        GpuLink(0, 1, "NV", 12),
        GpuLink(0, 2, "PIX"),
        GpuLink(0, 3, "PXB"),
        GpuLink(1, 2, "PHB"),
        GpuLink(1, 3, "NODE"),
    )
    assert read_gpu_facts(nvml, links=False).links == ()
