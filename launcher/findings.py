"""Judges the facts of a machine: what is wrong for training, why, and what to type; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from .hardware.snapshot import Hardware
from .hardware.software import Software

Severity = Literal["error", "warning", "note"]
GIB = 1 << 30
MINIMUM_TORCH = (2, 13)

_ORDER: Mapping[Severity, int] = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong or worth knowing.

    Args:
        code: its lasting name, for programs.
        severity: error: training fails; warning: slower or less than wanted; note: worth knowing.
        what: what is wrong, with the value.
        why: what it does to training.
        fix: what to type or change.
    """

    code: str
    severity: Severity
    what: str
    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the active profile asks of this machine.

    Args:
        origin: the profile's name or file, for messages.
        processes_here: worker processes on this machine, None: not said.
        gpu_ids: the devices it names, as written; None: all.
        cpu: trains on the CPU; False: says that it does not; None: not said.
        mixed_precision: no, fp16, bf16 or fp8.
        num_machines: machines of the job.
    """

    origin: str
    processes_here: int | None = None
    gpu_ids: str | None = None
    cpu: bool | None = None
    mixed_precision: str = "no"
    num_machines: int = 1


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the judgement rests on.

    Args:
        hardware: this machine.
        software: installed versions.
        environment: the variables, unmasked.
        wishes: of the active profile; None without one.
        settings: what was found wrong with the settings in use when they were read.
    """

    hardware: Hardware
    software: Software
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    wishes: Wishes | None = None
    settings: tuple[Finding, ...] = ()


def find_problems(facts: Facts) -> tuple[Finding, ...]:
    """What is wrong with this machine, errors first."""
    found = [*facts.settings, *(finding for check in _CHECKS for finding in check(facts))]
    return tuple(sorted(found, key=lambda finding: _ORDER[finding.severity]))


def _torch(facts: Facts) -> Iterator[Finding]:
    version = facts.software.version("torch")
    install = "pip install 'torch>=2.13'"
    if version is None:
        why = f"xl launches PyTorch scripts, and {facts.software.executable} does not find torch"
        yield Finding("torch-missing", "error", "torch is not installed", why, install)
        return
    if _numbers(version)[:2] < MINIMUM_TORCH:
        why = "xl is built on interfaces of torch 2.13"
        yield Finding("torch-old", "error", f"torch {version} is older than 2.13", why, install)


def _driver(facts: Facts) -> Iterator[Finding]:
    gpus, needs = facts.hardware.gpus, facts.software.torch_cuda
    if facts.software.version("torch") is None:
        return
    if needs is None and gpus.gpus:
        yield Finding(
            "torch-without-cuda",
            "error",
            f"torch {facts.software.version('torch')} has no CUDA, {len(gpus.gpus)} GPUs are here",
            "every GPU stays unused, and a script that asks for cuda fails",
            "install a CUDA build: see https://pytorch.org/get-started/locally",
        )
    elif needs and gpus.driver_cuda and gpus.driver_cuda[0] < needs[0]:
        # Within one major version CUDA promises that newer libraries run on older drivers.
        yield Finding(
            "driver-old",
            "error",
            f"the NVIDIA driver {gpus.driver_version} is older than torch needs",
            f"it runs CUDA {_dotted(gpus.driver_cuda)}, torch was built for {_dotted(needs)}",
            f"install a driver for CUDA {needs[0]} or newer, or a torch built for CUDA {gpus.driver_cuda[0]}",
        )


def _gpus_answer(facts: Facts) -> Iterator[Finding]:
    gpus = facts.hardware.gpus
    broken = gpus.problems if gpus.gpus or gpus.driver_version else ()
    for problem in broken:
        why = "a job that uses all GPUs fails or hangs on it"
        yield Finding(
            "gpu-broken",
            "error",
            problem,
            why,
            "look at `dmesg | grep -i xid`; reset the GPU or restart the machine",
        )
    if not gpus.gpus:
        for problem in gpus.problems:
            if "does not answer" in problem and not broken:
                fix = "run nvidia-smi: a driver that was updated needs a restart of the machine"
                yield Finding("driver-broken", "error", problem, "no GPU can be used", fix)
    for gpu in gpus.gpus:
        if gpu.memory_total_bytes and gpu.memory_free_bytes < gpu.memory_total_bytes / 2:
            what = f"GPU {gpu.index} has {_gib(gpu.memory_free_bytes)} of {_gib(gpu.memory_total_bytes)} free"
            why = "other programs hold the rest, training may run out of memory"
            yield Finding("gpu-memory-taken", "warning", what, why, "see whose they are with nvidia-smi")


def _visible_devices(facts: Facts) -> Iterator[Finding]:
    gpus, value = facts.hardware.gpus.gpus, facts.environment.get("CUDA_VISIBLE_DEVICES")
    if value is None or not gpus:
        return
    entries = [entry.strip() for entry in value.split(",")]
    uuids = [uuid for gpu in gpus for uuid in (gpu.uuid, *gpu.mig)]
    known = {str(gpu.index) for gpu in gpus}
    seen: set[str] = set()
    for place, entry in enumerate(entries):
        matches = [uuid for uuid in uuids if entry and uuid.startswith(entry)]
        if (entry in known or len(matches) == 1) and entry not in seen:
            seen.add(entry)
            continue
        reason = (
            "names a GPU twice" if entry in seen else f"names {entry!r}, which is none of this machine's GPUs"
        )
        if not value.strip() or entry == "-1" and place == 0:
            reason = "hides every GPU"
        elif entry in seen:
            place = 0
        yield Finding(
            "cuda-visible-devices",
            "warning",
            f"CUDA_VISIBLE_DEVICES={value} {reason}",
            f"CUDA stops reading there: {place} of {len(gpus)} GPUs can be used",
            "unset CUDA_VISIBLE_DEVICES, or name GPUs that `xl env` lists",
        )
        return


def _shared_memory(facts: Facts) -> Iterator[Finding]:
    total, free = facts.hardware.memory.shm_total_bytes, facts.hardware.memory.shm_free_bytes
    if total is None or free is None:
        return
    why = "data workers pass batches through it and die with a bus error when it is full"
    if total < GIB:
        fix = (
            "start the container with --shm-size=8g or --ipc=host (Kubernetes: an emptyDir of medium Memory)"
        )
        yield Finding("shm-small", "warning", f"shared memory (/dev/shm) is {_gib(total)}", why, fix)
    elif free < total / 10 and free < GIB:
        what = f"shared memory (/dev/shm) has {_gib(free)} of {_gib(total)} left"
        yield Finding("shm-full", "warning", what, why, "remove what dead jobs left: ls -la /dev/shm")


def _threads(facts: Facts) -> Iterator[Finding]:
    cores, cpu = facts.hardware.cpu.usable_cores, facts.hardware.cpu
    value = facts.environment.get("OMP_NUM_THREADS")
    if value is not None and not value.replace(",", "").isdigit():
        why = "the OpenMP library ignores it and picks a number itself"
        yield Finding(
            "omp-odd", "warning", f"OMP_NUM_THREADS={value} is no number", why, "unset OMP_NUM_THREADS"
        )
    elif value == "1" and cores > 1:
        why = f"each worker computes on one core of the {cores} that may be used; xl keeps the value you set"
        fix = "unset OMP_NUM_THREADS: xl then shares the cores among the workers"
        yield Finding("omp-one-thread", "warning", "OMP_NUM_THREADS=1 is set", why, fix)
    elif value and int(value.partition(",")[0] or 0) > cores:
        why = f"only {cores} cores may be used, so the threads wait for each other"
        yield Finding(
            "omp-too-many", "warning", f"OMP_NUM_THREADS={value} is set", why, "unset OMP_NUM_THREADS"
        )
    if cores < cpu.logical_cores:
        limits = (
            [f"the affinity mask holds {len(cpu.allowed)}"] if len(cpu.allowed) < cpu.logical_cores else []
        )
        limits += [f"a control group allows the time of {cpu.quota_cores:g}"] if cpu.quota_cores else []
        what = f"{cores} of {cpu.logical_cores} CPU cores may be used"
        fix = "ask for more where the job or container is started (--cpus-per-task, --cpus)"
        yield Finding("cores-limited", "note", what, " and ".join(limits) or "the system says so", fix)


def _ram(facts: Facts) -> Iterator[Finding]:
    memory = facts.hardware.memory
    total, limit, used = memory.total_bytes, memory.limit_bytes, memory.limit_used_bytes
    if limit and used and used > 0.9 * limit:
        what = f"{_gib(used)} of the {_gib(limit)} that the control group allows are used"
        why = "the next allocations get a process killed without a Python error"
        yield Finding(
            "memory-limit-near",
            "warning",
            what,
            why,
            "raise the limit (--memory, --mem) or stop other programs",
        )
    elif limit and total and limit < total / 2:
        what = f"a control group limits memory to {_gib(limit)} of {_gib(total)}"
        why = "a process that needs more is killed without a Python error"
        yield Finding(
            "memory-limited",
            "note",
            what,
            why,
            "raise it where the job or container is started (--memory, --mem)",
        )
    available = memory.available_bytes
    if total and available is not None and available < total / 10:
        swap = "there is no swap" if memory.swap_total_bytes == 0 else "the rest goes to swap"
        what = f"{_gib(available)} of {_gib(total)} RAM are available, {swap}"
        why = "each worker holds the model, and data workers hold copies of their data"
        yield Finding("memory-low", "warning", what, why, "stop other programs, or launch fewer processes")


def _disk(facts: Facts) -> Iterator[Finding]:
    for disk in facts.hardware.disks:
        place = f"{disk.path} ({disk.purpose})"
        if not disk.writable:
            fix = (
                "set TMPDIR to a folder you may write"
                if disk.purpose == "temporary files"
                else f"chown or chmod {disk.path}"
            )
            yield Finding(
                "disk-read-only", "error", f"{place} cannot be written", "a launch writes there", fix
            )
        elif disk.free_bytes is not None and disk.free_bytes < GIB:
            what = f"{_gib(disk.free_bytes)} are free in {place}"
            yield Finding(
                "disk-low",
                "warning",
                what,
                "logs and checkpoints may be cut short",
                "free some room, or use another disk",
            )


def _open_files(facts: Facts) -> Iterator[Finding]:
    limits = facts.hardware.open_files
    if limits and limits[0] < 4096:
        soft, hard = limits
        why = "data workers and connections between many workers run out of file descriptors"
        fix = f"ulimit -n {min(hard, 65536)}" if hard > soft else "raise nofile in /etc/security/limits.conf"
        yield Finding("open-files-low", "warning", f"a process may open {soft} files", why, fix)


def _network(facts: Facts) -> Iterator[Finding]:
    network, environment = facts.hardware.network, facts.environment
    outward = [interface.name for interface in network.outward]
    loopback = [a for a in network.hostname_addresses if a.startswith("127.") or a == "::1"]
    several = facts.wishes is not None and facts.wishes.num_machines > 1
    if loopback and len(outward) >= (1 if several else 2) and "GLOO_SOCKET_IFNAME" not in environment:
        yield Finding(
            "hostname-loopback",
            "warning" if several else "note",
            f"{network.hostname} resolves to {loopback[0]} (/etc/hosts)",
            "on several machines gloo would offer an address that others cannot reach",
            f"export GLOO_SOCKET_IFNAME={outward[0]}"
            + (f" (one of {', '.join(outward)})" if outward[1:] else ""),
        )
    names = [interface.name for interface in network.interfaces]
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        value = environment.get(variable, "")
        if value and names and not _some_interface(value, names, exact=variable.startswith("GLOO")):
            why = "workers on several machines cannot connect"
            fix = f"export {variable}={outward[0]}" if outward else f"unset {variable}"
            what = f"{variable}={value} is none of the interfaces {', '.join(names)}"
            yield Finding("interface-unknown", "error", what, why, fix)


def _nccl(facts: Facts) -> Iterator[Finding]:
    environment, hardware = facts.environment, facts.hardware
    several_gpus = len(hardware.gpus.gpus) > 1
    slow = {
        "NCCL_P2P_DISABLE": ("GPUs exchange gradients through main memory instead of directly", several_gpus),
        "NCCL_SHM_DISABLE": ("GPUs of one machine talk through the network", several_gpus),
        "NCCL_IB_DISABLE": (
            "InfiniBand is here and stays unused between machines",
            bool(hardware.network.infiniband_ports),
        ),
    }
    for name, (why, matters) in slow.items():
        if matters and environment.get(name, "0").strip() not in ("", "0"):
            what = f"{name}={environment[name]} is set"
            yield Finding(
                "nccl-slow", "warning", what, why, f"unset {name} (keep it only where NCCL hangs without it)"
            )
    if several_gpus and environment.get("NCCL_P2P_LEVEL", "").upper() in ("LOC", "0"):
        why = "GPUs exchange gradients through main memory instead of directly"
        yield Finding("nccl-slow", "warning", "NCCL_P2P_LEVEL=LOC is set", why, "unset NCCL_P2P_LEVEL")
    if hardware.gpus.gpus and environment.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        why = "the CPU waits for every kernel: meant for debugging, training is far slower"
        yield Finding(
            "cuda-blocking", "warning", "CUDA_LAUNCH_BLOCKING=1 is set", why, "unset CUDA_LAUNCH_BLOCKING"
        )


def _profile(facts: Facts) -> Iterator[Finding]:
    wishes, gpus = facts.wishes, facts.hardware.gpus
    if wishes is None or wishes.cpu:
        return
    here = sum(len(gpu.mig) or 1 for gpu in gpus.gpus)
    ids = [part.strip() for part in (wishes.gpu_ids or "").split(",") if part.strip() not in ("", "all")]
    if not here and wishes.cpu is False:
        what = f"{wishes.origin} is for GPUs (cpu: false), none are here"
        fix = "launch where the GPUs are, or xl config set cpu true"
        yield Finding("profile-gpus", "warning", what, "training would run on the CPU", fix)
        return
    absent = [entry for entry in ids if entry.isdigit() and int(entry) >= len(gpus.gpus)]
    if absent:
        what = f"{wishes.origin} asks for the GPUs {wishes.gpu_ids}, {len(gpus.gpus)} are here"
        fix = "xl config set gpu_ids all, or xl config use another profile"
        yield Finding("profile-gpus", "error", what, f"{', '.join(absent)} do not exist", fix)
    elif here and (wishes.processes_here or 0) > here:
        what = f"{wishes.origin} asks for {wishes.processes_here} processes, {here} GPUs are here"
        fix = f"xl config set num_processes_per_machine {here}"
        yield Finding("profile-gpus", "error", what, "every process needs a GPU of its own", fix)
    capable = [detail.compute_capability for detail in gpus.details if detail.compute_capability]
    if wishes.mixed_precision == "bf16" and capable and min(capable) < (8, 0):
        what = f"{wishes.origin} asks for bf16"
        why = f"a GPU here has compute capability {_dotted(min(capable))}; bf16 needs 8.0 (Ampere)"
        yield Finding("profile-bf16", "warning", what, why, "xl config set mixed_precision fp16")


_CHECKS = (
    *(_torch, _driver, _gpus_answer, _visible_devices, _profile, _shared_memory, _threads, _ram, _disk),
    *(_open_files, _network, _nccl),
)


def _some_interface(value: str, names: list[str], *, exact: bool) -> bool:
    """NCCL takes prefixes, `=` for exact names and `^` for names to leave out; gloo takes exact names."""
    if value.startswith("^"):
        return True
    exact = exact or value.startswith("=")
    wanted = [part.strip().partition(":")[0] for part in value.lstrip("=").split(",")]
    return any(name == part if exact else name.startswith(part) for part in wanted for name in names)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.0f} MiB"
