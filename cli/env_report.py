"""Arranges the facts of `xl env`: as data with stable names for programs, as labelled lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from ..launcher.findings import Finding, Severity
from ..launcher.hardware.files import format_cpu_list
from ..launcher.hardware.gpu_links import MEANING, GpuLink
from ..launcher.hardware.snapshot import Hardware
from ..launcher.hardware.software import Software
from .env_settings import SettingsFile, shown_values

SCHEMA_VERSION = 1
"""Of the JSON form: raised when a name goes or changes its meaning, not when one is added."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that `xl env` says.

    Args:
        files: settings files, those that win first.
        variables: (name, masked value).
        findings: errors first.
    """

    hardware: Hardware
    software: Software
    files: tuple[SettingsFile, ...]
    variables: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A titled list of (label, text); a label may be empty."""

    title: str
    rows: tuple[tuple[str, str], ...]


# --- data ---


def as_data(report: Report) -> dict[str, object]:
    """The report for programs; sizes in bytes, null for what is not known."""
    return {
        "schema_version": SCHEMA_VERSION,
        "hardware": _hardware_data(report.hardware),
        "software": {
            "python": report.software.python,
            "executable": report.software.executable,
            "platform": report.software.platform,
            "torch_cuda": _dotted(report.software.torch_cuda),
            "packages": dict(report.software.packages),
        },
        "settings": [
            {
                "role": file.role,
                "name": file.name or None,
                "path": file.path or None,
                "named_by": file.named_by,
                "problem": file.problem,
                "values": shown_values(file),
            }
            for file in report.files
        ],
        "variables": dict(report.variables),
        "findings": [asdict(finding) for finding in report.findings],
    }


def _hardware_data(hardware: Hardware) -> dict[str, object]:
    cpu, gpus, network = hardware.cpu, hardware.gpus, hardware.network
    return {
        "cpu": {
            "model": cpu.model,
            "logical_cores": cpu.logical_cores,
            "physical_cores": cpu.physical_cores,
            "usable_cores": cpu.usable_cores,
            "allowed_cpus": sorted(cpu.allowed),
            "quota_cores": cpu.quota_cores,
            "numa_nodes": [
                {"index": node.index, "cpus": sorted(node.cpus), "memory_bytes": node.memory_bytes}
                for node in cpu.numa_nodes
            ],
        },
        "memory": asdict(hardware.memory),
        "gpus": [
            {
                **{name: value for name, value in asdict(gpu).items() if name != "mig"},
                "compute_capability": _dotted(detail.compute_capability),
                "mig": [
                    {"uuid": uuid, "memory_total_bytes": size}
                    for uuid, size in zip(gpu.mig, detail.mig_memory_bytes, strict=True)
                ],
            }
            for gpu, detail in zip(gpus.gpus, gpus.details, strict=True)
        ],
        "gpu_links": [asdict(link) for link in gpus.links],
        "nvidia_driver": {"version": gpus.driver_version, "cuda": _dotted(gpus.driver_cuda)},
        "gpu_problems": list(gpus.problems),
        "disks": [asdict(disk) for disk in hardware.disks],
        "network": {
            "hostname": network.hostname,
            "hostname_addresses": list(network.hostname_addresses),
            "interfaces": [asdict(interface) for interface in network.interfaces],
            "infiniband_ports": list(network.infiniband_ports),
        },
        "open_files": {"soft": hardware.open_files[0], "hard": hardware.open_files[1]}
        if hardware.open_files
        else None,
        "tpu": hardware.tpu,
    }


# --- lines ---


def sections(report: Report) -> tuple[Section, ...]:
    """The report for people, all but the findings."""
    return (
        Section("Hardware", tuple(_hardware_rows(report.hardware))),
        Section("Software", tuple(_software_rows(report.software))),
        Section("Settings", tuple(_settings_rows(report.files))),
        Section("Variables", report.variables or (("", "none that steer training"),)),
    )


def _hardware_rows(hardware: Hardware) -> Iterable[tuple[str, str]]:
    cpu, memory = hardware.cpu, hardware.memory
    cores = f"{cpu.logical_cores} cores" if cpu.logical_cores != 1 else "1 core"
    threads = (
        f" ({cpu.physical_cores} physical)" if cpu.physical_cores not in (None, cpu.logical_cores) else ""
    )
    yield "CPU", f"{cpu.model}, {cores}{threads}, {cpu.usable_cores} usable"
    nodes = [f"node {node.index}: CPUs {format_cpu_list(node.cpus) or 'none'}" for node in cpu.numa_nodes]
    if nodes:
        yield "NUMA", "; ".join(nodes)
    swap = f", swap {size(memory.swap_total_bytes)}" if memory.swap_total_bytes else ", no swap"
    yield "RAM", f"{size(memory.total_bytes)}, {size(memory.available_bytes)} available{swap}"
    if memory.limit_bytes is not None:
        yield (
            "RAM limit",
            f"{size(memory.limit_bytes)} by control group, {size(memory.limit_used_bytes)} used",
        )
    if memory.shm_total_bytes is not None:
        yield "/dev/shm", f"{size(memory.shm_free_bytes)} of {size(memory.shm_total_bytes)} free"
    yield from _gpu_rows(hardware)
    for disk in hardware.disks:
        room = f"{size(disk.free_bytes)} of {size(disk.total_bytes)} free"
        yield "Disk", f"{disk.path} ({disk.purpose}): {room if disk.writable else 'cannot be written'}"
    yield "Host name", " = ".join([hardware.network.hostname, *hardware.network.hostname_addresses])
    for interface in hardware.network.interfaces:
        if interface.up and interface.addresses:
            speed = f", {interface.speed_mbit_s} Mbit/s" if interface.speed_mbit_s else ""
            yield "Network", f"{interface.name}: {', '.join(interface.addresses)}{speed}"
    if hardware.network.infiniband_ports:
        yield "InfiniBand", ", ".join(hardware.network.infiniband_ports)
    if hardware.open_files:
        soft, hard = ("unlimited" if limit >= 1 << 62 else str(limit) for limit in hardware.open_files)
        yield "Open files", f"{soft} (may be raised to {hard})" if soft != hard else soft
    if hardware.tpu:
        yield "TPU", f"{hardware.tpu} (not supported: there is no torch_xla for torch 2.13)"


def _gpu_rows(hardware: Hardware) -> Iterable[tuple[str, str]]:
    gpus = hardware.gpus
    for gpu, detail in zip(gpus.gpus, gpus.details, strict=True):
        memory = f"{size(gpu.memory_free_bytes)} of {size(gpu.memory_total_bytes)} free"
        if not gpu.memory_total_bytes:
            memory = "memory not told"
        capability = _dotted(detail.compute_capability)
        facts = [gpu.name, memory, *([f"compute capability {capability}"] if capability else []), gpu.uuid]
        yield f"GPU {gpu.index}", ", ".join(facts)
        for uuid, mig_size in zip(gpu.mig, detail.mig_memory_bytes, strict=True):
            yield "  MIG", f"{size(mig_size)}, {uuid}"
    if gpus.links:
        yield "GPU links", links_text(gpus.links)
    if gpus.driver_version:
        cuda = f", runs CUDA up to {_dotted(gpus.driver_cuda)}" if gpus.driver_cuda else ""
        yield "Driver", f"NVIDIA {gpus.driver_version}{cuda}"
    for problem in gpus.problems:
        yield "GPUs", problem


def links_text(links: Sequence[GpuLink]) -> str:
    """The pairs of GPUs by how they are connected, fastest first."""
    groups: dict[tuple[int, int], list[GpuLink]] = {}
    for link in links:
        groups.setdefault((list(MEANING).index(link.kind), -link.nvlinks), []).append(link)
    parts: list[str] = []
    for _, group in sorted(groups.items()):
        count = f" x{group[0].nvlinks}" if group[0].nvlinks else ""
        pairs = "all pairs" if len(groups) == 1 else " ".join(f"{link.first}-{link.second}" for link in group)
        parts.append(f"{pairs}: {group[0].kind}{count} ({MEANING[group[0].kind]})")
    return "; ".join(parts)


def _software_rows(software: Software) -> Iterable[tuple[str, str]]:
    yield "Python", f"{software.python}, {software.executable}"
    yield "Platform", software.platform
    for name, version in software.packages:
        build = ""
        if name == "torch":
            build = (
                f", built for CUDA {_dotted(software.torch_cuda)}"
                if software.torch_cuda
                else ", without CUDA"
            )
        yield name, version + build
    if software.version("torch") is None:
        yield "torch", "not installed"


def _settings_rows(files: Sequence[SettingsFile]) -> Iterable[tuple[str, str]]:
    if not files:
        yield "", "no profile is active: every launch uses the defaults; xl config makes one"
    for file in files:
        name = f"{file.name}, " if file.name else ""
        yield file.role.capitalize(), f"{name}{file.path or 'no file'} (by {file.named_by})"
        if file.problem:
            yield "  problem", file.problem
        for key, value in shown_values(file).items():
            yield f"  {key}", str(value)


def size(count: int | None) -> str:
    """Bytes in the largest unit that leaves a number of at least 1."""
    if count is None:
        return "unknown"
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


def severity_counts(findings: Sequence[Finding]) -> Mapping[Severity, int]:
    """How many findings there are of each severity."""
    counts: dict[Severity, int] = {}
    for finding in findings:
        counts[finding.severity] = counts.get(finding.severity, 0) + 1
    return counts


def _dotted(version: tuple[int, int] | None) -> str | None:
    return f"{version[0]}.{version[1]}" if version else None
