"""CPU facts: the model, the cores, and how many of them this process may really use."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from .cgroups import Cgroup, find_cgroups
from .files import ROOT, list_names, parse_cpu_list, read_int, read_text


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One memory node.

    Args:
        index: the kernel's number.
        cpus: its logical CPUs.
        memory_bytes: memory attached to it, None if not told.
    """

    index: int
    cpus: frozenset[int]
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processors.

    Args:
        model: name of the first processor.
        logical_cores: logical CPUs of the machine.
        physical_cores: cores without their extra threads, None if not told.
        allowed: logical CPUs this process may run on (affinity, which includes cpusets).
        quota_cores: CPU time allowed by control groups, in cores; None without a limit.
        numa_nodes: memory nodes, by index.
    """

    model: str
    logical_cores: int
    physical_cores: int | None
    allowed: frozenset[int]
    quota_cores: float | None
    numa_nodes: tuple[NumaNode, ...]

    @property
    def usable_cores(self) -> int:
        """Cores that this process can keep busy at once; a part of a core counts as one."""
        quota = len(self.allowed) if self.quota_cores is None else ceil(self.quota_cores)
        return max(1, min(len(self.allowed), quota))


def read_cpu(root: Path = ROOT, allowed: frozenset[int] | None = None) -> Cpu:
    """The processors of this machine; `allowed` defaults to this process's affinity."""
    logical = os.cpu_count() or 1
    blocks = [_fields(block) for block in read_text(root / "proc/cpuinfo").split("\n\n") if block.strip()]
    numbered = [block for block in blocks if "processor" in block]
    if root != ROOT or not logical:
        logical = len(numbered) or 1
    return Cpu(
        model=_model(blocks),
        logical_cores=logical,
        physical_cores=len(
            {(b["physical id"], b["core id"]) for b in numbered if "core id" in b and "physical id" in b}
        )
        or None,
        allowed=_affinity(logical) if allowed is None else allowed,
        quota_cores=read_cpu_quota(root),
        numa_nodes=read_numa_nodes(root),
    )


def read_usable_cores(root: Path = ROOT, allowed: frozenset[int] | None = None) -> int:
    """Cores that this process can keep busy at once, by affinity and control groups: at least 1."""
    allowed = _affinity(os.cpu_count() or 1) if allowed is None else allowed
    return Cpu("", len(allowed), None, allowed, read_cpu_quota(root), ()).usable_cores


def read_cpu_quota(root: Path = ROOT) -> float | None:
    """CPU time allowed by the tightest control group, in cores; None without a limit."""
    quotas = [quota for group in find_cgroups("cpu", root) if (quota := _quota(group)) is not None]
    return min(quotas, default=None)


def read_numa_nodes(root: Path = ROOT) -> tuple[NumaNode, ...]:
    """The memory nodes with their CPUs, by index; empty where the kernel names none."""
    folder = root / "sys/devices/system/node"
    nodes: list[NumaNode] = []
    for name in list_names(folder):
        if name.startswith("node") and name[4:].isdigit():
            cpus = parse_cpu_list(read_text(folder / name / "cpulist"))
            nodes.append(NumaNode(int(name[4:]), cpus, _node_memory(read_text(folder / name / "meminfo"))))
    return tuple(sorted(nodes, key=lambda node: node.index))


def bindable_cpus(node: NumaNode, allowed: frozenset[int]) -> frozenset[int]:
    """The CPUs to bind a process of this node to: those allowed, or all allowed ones when the node has none.

    Binding to a CPU outside the allowed set fails inside containers, and an empty set would stop the process.
    """
    return node.cpus & allowed or allowed


def _affinity(logical: int) -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(logical))


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _model(blocks: list[dict[str, str]]) -> str:
    for key in ("model name", "Model", "cpu", "Processor"):  # x86, some ARM boards, POWER, old ARM
        for block in blocks:
            if block.get(key):
                return block[key]
    return platform.processor() or platform.machine()


def _quota(group: Cgroup) -> float | None:
    if group.version == 2:
        quota, _, period = read_text(group.folder / "cpu.max").partition(" ")
        return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None
    quota_us, period_us = (
        read_int(group.folder / "cpu.cfs_quota_us"),
        read_int(group.folder / "cpu.cfs_period_us"),
    )
    return quota_us / period_us if quota_us and period_us and quota_us > 0 else None


def _node_memory(text: str) -> int | None:
    for line in text.splitlines():  # Node 0 MemTotal:       24684328 kB
        words = line.split()
        if len(words) >= 4 and words[2] == "MemTotal:" and words[3].isdigit():
            return int(words[3]) * 1024
    return None
