"""All hardware facts in one frozen value, gathered in one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..gpus import GpuFacts, read_gpu_facts
from .cpu import Cpu, read_cpu
from .disk import Disk, read_disk, temporary_folder
from .memory import Memory, read_memory
from .network import Network, read_network


@dataclass(frozen=True, slots=True)
class Hardware:
    """This machine.

    Args:
        cpu: processors.
        memory: RAM, swap, limits, shared memory.
        gpus: NVIDIA GPUs and their driver.
        disks: the folders that training writes to.
        network: interfaces.
        open_files: (soft, hard) limit of open files for each process; None where there is none.
        tpu: what shows that this is a TPU machine; None if nothing does.
    """

    cpu: Cpu
    memory: Memory
    gpus: GpuFacts
    disks: tuple[Disk, ...]
    network: Network
    open_files: tuple[int, int] | None = None
    tpu: str | None = None


def read_hardware(environment: Mapping[str, str], folders: Mapping[str, Path]) -> Hardware:
    """The facts of this machine.

    Args:
        environment: the variables that name the folder for temporary files.
        folders: purpose -> path of further folders whose room matters.
    """
    places = {"temporary files": temporary_folder(environment), **folders}
    return Hardware(
        cpu=read_cpu(),
        memory=read_memory(),
        gpus=read_gpu_facts(),
        disks=tuple(read_disk(purpose, path) for purpose, path in places.items()),
        network=read_network(),
        open_files=_open_files(),
        tpu=find_tpu(environment),
    )


def find_tpu(environment: Mapping[str, str], devices: Path = Path("/dev")) -> str | None:
    """What shows that this is a TPU machine, in a few words; None if nothing does."""
    if environment.get("PJRT_DEVICE", "").upper() == "TPU":
        return "PJRT_DEVICE=TPU"
    for name in ("TPU_NAME", "TPU_WORKER_ID", "COLAB_TPU_ADDR"):
        if environment.get(name):
            return f"{name}={environment[name]}"
    accel = devices / "accel0"  # TPU v2 to v4; newer ones cannot be told from other VFIO devices
    return str(accel) if accel.exists() else None


def _open_files() -> tuple[int, int] | None:
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    return (2**63 - 1 if soft == unlimited else soft, 2**63 - 1 if hard == unlimited else hard)
