"""Reads the NVIDIA GPUs of this machine through NVML, without torch and without creating a CUDA context."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from .hardware.gpu_links import GpuLink, read_links
from .hardware.nvml import Nvml, NvmlAbsentError, ask, nvml_session
from .machine import Gpu


@dataclass(frozen=True, slots=True)
class GpuDetail:
    """What planning needs no word of, but sizing and reports do.

    Args:
        compute_capability: (8, 0) is Ampere; None if not told.
        mig_memory_bytes: memory of each MIG instance, in the order of `Gpu.mig`.
    """

    compute_capability: tuple[int, int] | None = None
    mig_memory_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The GPUs in NVML's order, which is the order of their PCI addresses and not always CUDA's.

    Args:
        gpus: the devices; a size of 0 bytes means that the driver does not tell it.
        details: one for each GPU.
        links: paths between pairs of GPUs.
        driver_version: of the kernel driver.
        driver_cuda: the newest CUDA (major, minor) that the driver runs.
        problems: what could not be read and why, in a sentence each.
    """

    gpus: tuple[Gpu, ...] = ()
    details: tuple[GpuDetail, ...] = ()
    links: tuple[GpuLink, ...] = ()
    driver_version: str | None = None
    driver_cuda: tuple[int, int] | None = None
    problems: tuple[str, ...] = ()


def read_gpus(nvml: Nvml | None = None) -> tuple[Gpu, ...]:
    """The GPUs of this machine, whatever CUDA_VISIBLE_DEVICES says; empty without a driver."""
    return read_gpu_facts(nvml, links=False).gpus


def read_gpu_facts(nvml: Nvml | None = None, *, links: bool = True) -> GpuFacts:
    """All that is known of the GPUs; `links=False` leaves out how they are connected, which takes longest."""
    try:
        with nvml_session(nvml) as library:
            return _read(library, links)
    except NvmlAbsentError as absent:
        return GpuFacts(problems=(str(absent),))


def _read(nvml: Nvml, links: bool) -> GpuFacts:
    gpus: list[Gpu] = []
    details: list[GpuDetail] = []
    handles: list[tuple[int, object]] = []
    problems: list[str] = []
    for index in range(ask(nvml, nvml.nvmlDeviceGetCount) or 0):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            gpu, detail = _device(nvml, index, handle)
        except nvml.NVMLError as error:  # a GPU that fell off the bus must not hide the others
            problems.append(f"GPU {index} does not answer: {error}")
            continue
        gpus.append(gpu)
        details.append(detail)
        handles.append((index, handle))
    cuda = ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)  # 12040 is 12.4
    return GpuFacts(
        gpus=tuple(gpus),
        details=tuple(details),
        links=read_links(nvml, handles) if links else (),
        driver_version=ask(nvml, nvml.nvmlSystemGetDriverVersion),
        driver_cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
        problems=tuple(problems),
    )


def _device(nvml: Nvml, index: int, handle: object) -> tuple[Gpu, GpuDetail]:
    memory = ask(
        nvml, partial(nvml.nvmlDeviceGetMemoryInfo, handle)
    )  # not told where the GPU shares the CPU's memory
    mig = _mig_instances(nvml, handle)
    gpu = Gpu(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        memory_total_bytes=int(memory.total) if memory else 0,
        memory_free_bytes=int(memory.free) if memory else 0,
        mig=tuple(uuid for uuid, _ in mig),
    )
    capability = ask(nvml, partial(nvml.nvmlDeviceGetCudaComputeCapability, handle))
    return gpu, GpuDetail(
        (capability[0], capability[1]) if capability else None, tuple(size for _, size in mig)
    )


def _mig_instances(nvml: Nvml, handle: object) -> list[tuple[str, int]]:
    """(UUID, memory in bytes) of each MIG instance; empty where the GPU is not divided."""
    mode = ask(nvml, partial(nvml.nvmlDeviceGetMigMode, handle))
    if not mode or mode[0] != 1:
        return []
    found: list[tuple[str, int]] = []
    for index in range(ask(nvml, partial(nvml.nvmlDeviceGetMaxMigDeviceCount, handle)) or 0):
        instance = ask(nvml, partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index))
        if instance is None:  # the places of instances that were not created
            continue
        uuid = ask(nvml, partial(nvml.nvmlDeviceGetUUID, instance))
        memory = ask(nvml, partial(nvml.nvmlDeviceGetMemoryInfo, instance))
        if uuid:
            found.append((uuid, int(memory.total) if memory else 0))
    return found
