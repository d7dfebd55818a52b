"""What the wizard offers, from facts that stand in for machines with GPUs."""

import pytest

from xl.cli.config.wizard_machine import Offer, make_offer
from xl.launcher.gpus import GpuDetail, GpuFacts
from xl.launcher.hardware.cpu import Cpu
from xl.launcher.hardware.memory import Memory
from xl.launcher.hardware.network import Interface, Network
from xl.launcher.hardware.snapshot import Hardware
from xl.launcher.hardware.software import Software
from xl.launcher.machine import Gpu

GIB = 1 << 30
A, B = (
    Gpu(0, "GPU-a", "A100", 80 * GIB, 70 * GIB),
    Gpu(1, "GPU-b", "T4", 16 * GIB, 15 * GIB),
)
MIG = Gpu(0, "GPU-m", "H100", 80 * GIB, 80 * GIB, ("MIG-1", "MIG-2"))
TWO = GpuFacts((A, B), (GpuDetail((8, 0)), GpuDetail((7, 5))))
SPLIT = GpuFacts((MIG,), (GpuDetail((9, 0), (20 * GIB, 10 * GIB)),))


def offer(gpus: GpuFacts, environ: dict[str, str] | None = None, limit: int | None = None) -> Offer:
    hardware = Hardware(
        Cpu("Fast CPU", 8, 8, frozenset(range(8)), None, ()),
        Memory(64 * GIB, 60 * GIB, 0, limit),
        gpus,
        (),
        Network(
            "node",
            (),
            (Interface("lo", ("127.0.0.1",), True, True), Interface("eth0", ("10.0.0.5",), True, False)),
        ),
    )
    return make_offer(hardware, Software("3", "python", "Linux", (("deepspeed", "0.18"),)), environ or {})


def test_two_kinds_of_gpu_count_as_the_weaker() -> None:
    found = offer(TWO)
    assert found.gpus == ("A100", "T4")
    assert (found.gpu_memory_bytes, found.capability) == (16 * GIB, (7, 5))
    assert found.lines()[1] == "GPU: 1 x A100, 1 x T4, 16.0 GiB in the smallest"


def test_visible_devices_choose() -> None:
    found = offer(TWO, {"CUDA_VISIBLE_DEVICES": "GPU-a"})
    assert (found.gpus, found.hidden_gpus) == (("A100",), 1)
    assert (found.gpu_memory_bytes, found.capability) == (80 * GIB, (8, 0))
    assert found.lines()[2].endswith("CUDA_VISIBLE_DEVICES hides 1 more")


def test_a_number_whose_order_is_unknown_may_be_either() -> None:
    """CUDA counts fastest first and NVML by bus: which of two kinds 0 is, nobody can tell without CUDA."""
    found = offer(TWO, {"CUDA_VISIBLE_DEVICES": "0"})
    assert (len(found.gpus), found.gpu_memory_bytes, found.capability) == (1, 16 * GIB, (7, 5))


def test_mig_instances_are_devices() -> None:
    found = offer(SPLIT)
    assert found.gpus == ("H100 (MIG)", "H100 (MIG)")
    assert found.gpu_memory_bytes == 10 * GIB


def test_all_hidden() -> None:
    found = offer(TWO, {"CUDA_VISIBLE_DEVICES": ""})
    assert found.gpus == ()
    assert found.lines()[1] == "GPU: none (CUDA_VISIBLE_DEVICES= hides all)"


@pytest.mark.parametrize("problems", [("no NVIDIA driver found: x",), ()])
def test_without_gpus(problems: tuple[str, ...]) -> None:
    found = offer(GpuFacts(problems=problems), limit=8 * GIB)
    assert found.lines()[1] == f"GPU: none ({problems[0] if problems else 'the driver lists none'})"
    assert (found.ram_bytes, found.address, found.deepspeed) == (8 * GIB, "10.0.0.5", True)


def test_unknown_gpu_memory() -> None:
    unified = Gpu(0, "GPU-u", "GB10", 0, 0)
    assert offer(GpuFacts((unified,), (GpuDetail((12, 1)),))).gpu_memory_bytes is None
