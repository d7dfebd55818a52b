"""A sound machine as facts, for tests to spoil."""

from __future__ import annotations

from collections.abc import Sequence

from xl.launcher.findings import Facts, Wishes
from xl.launcher.gpus import GpuDetail, GpuFacts
from xl.launcher.hardware.cpu import Cpu
from xl.launcher.hardware.disk import Disk
from xl.launcher.hardware.memory import Memory
from xl.launcher.hardware.network import Interface, Network
from xl.launcher.hardware.snapshot import Hardware
from xl.launcher.hardware.software import Software
from xl.launcher.machine import Gpu

GIB = 1 << 30
ETH0 = Interface("eth0", ("10.0.0.5",), up=True, loopback=False)
ETH1 = Interface("eth1", ("10.1.0.5",), up=True, loopback=False)
LO = Interface("lo", ("127.0.0.1",), up=True, loopback=True)


def sound_cpu(logical: int = 8, quota: float | None = None) -> Cpu:
    return Cpu("Fast CPU", logical, logical, frozenset(range(8)), quota, ())


def sound_memory(
    available: int = 60 * GIB,
    swap: int = 8 * GIB,
    limit: int | None = None,
    used: int | None = None,
    shm: tuple[int, int] = (32 * GIB, 32 * GIB),
) -> Memory:
    return Memory(64 * GIB, available, swap, limit, used, *shm)


def gpu_facts(
    count: int = 2,
    *,
    free: int = 79 * GIB,
    capability: tuple[int, int] | None = (8, 0),
    cuda: tuple[int, int] = (13, 0),
    mig: Sequence[str] = (),
    problems: tuple[str, ...] = (),
) -> GpuFacts:
    gpus = tuple(Gpu(i, f"GPU-{i}", "NVIDIA A100", 80 * GIB, free, tuple(mig)) for i in range(count))
    details = (GpuDetail(capability, tuple(20 * GIB for _ in mig)),) * count
    return GpuFacts(gpus, details, (), "580.65.06" if count else None, cuda if count else None, problems)


def sound_software(torch: str | None = "2.13.0", cuda: tuple[int, int] | None = (13, 0)) -> Software:
    packages = (("torch", torch),) if torch else ()
    return Software("3.11.7", "/usr/bin/python3", "Linux", packages, cuda)


def sound_network(
    *interfaces: Interface, addresses: tuple[str, ...] = ("10.0.0.5",), infiniband: tuple[str, ...] = ()
) -> Network:
    return Network("node-1", addresses, interfaces or (ETH0, LO), infiniband)


def sound_hardware(
    cpu: Cpu | None = None,
    memory: Memory | None = None,
    gpus: GpuFacts | None = None,
    disks: tuple[Disk, ...] = (Disk("temporary files", "/tmp", 100 * GIB, 50 * GIB, writable=True),),
    network: Network | None = None,
    open_files: tuple[int, int] | None = (65536, 65536),
    tpu: str | None = None,
) -> Hardware:
    return Hardware(
        cpu or sound_cpu(),
        memory or sound_memory(),
        gpus or gpu_facts(),
        disks,
        network or sound_network(),
        open_files,
        tpu,
    )


def facts(
    hardware: Hardware | None = None,
    software: Software | None = None,
    environment: dict[str, str] | None = None,
    wishes: Wishes | None = None,
) -> Facts:
    return Facts(hardware or sound_hardware(), software or sound_software(), environment or {}, wishes)
