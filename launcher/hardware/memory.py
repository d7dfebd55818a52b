"""Memory facts: RAM, swap, control group limits and the shared memory that data workers use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .cgroups import Cgroup, find_cgroups
from .files import ROOT, read_int, read_text


@dataclass(frozen=True, slots=True)
class Memory:
    """Sizes in bytes; None: not told here.

    Args:
        total_bytes: RAM of the machine.
        available_bytes: RAM that programs can take now without swapping.
        swap_total_bytes: swap space.
        limit_bytes: the tightest control group limit below the machine's RAM; None without one.
        limit_used_bytes: what the limited group uses already.
        shm_total_bytes: size of /dev/shm.
        shm_free_bytes: what is free in it.
    """

    total_bytes: int | None = None
    available_bytes: int | None = None
    swap_total_bytes: int | None = None
    limit_bytes: int | None = None
    limit_used_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None

    @property
    def usable_bytes(self) -> int | None:
        """What this process may take: the RAM, or the control group limit below it."""
        sizes = [size for size in (self.total_bytes, self.limit_bytes) if size is not None]
        return min(sizes, default=None)


def read_memory(root: Path = ROOT) -> Memory:
    """The memory of this machine and the limits on this process."""
    fields = _meminfo(read_text(root / "proc/meminfo"))
    total = fields.get("MemTotal", _total_without_proc() if root == ROOT else None)
    limit, used = read_memory_limit(total, root)
    shm_total, shm_free = _file_system_size(root / "dev/shm")
    return Memory(
        total_bytes=total,
        available_bytes=fields.get("MemAvailable"),
        swap_total_bytes=fields.get("SwapTotal"),
        limit_bytes=limit,
        limit_used_bytes=used,
        shm_total_bytes=shm_total,
        shm_free_bytes=shm_free,
    )


def read_memory_limit(total_bytes: int | None, root: Path = ROOT) -> tuple[int | None, int | None]:
    """(limit, used) in bytes of the tightest control group; (None, None) if none is below `total_bytes`."""
    limits = [(limit, used) for group in find_cgroups("memory", root) for limit, used in _limit(group)]
    below = [pair for pair in limits if total_bytes is None or pair[0] < total_bytes]
    return min(below, key=lambda pair: pair[0], default=(None, None))


def _limit(group: Cgroup) -> list[tuple[int, int | None]]:
    names = (
        ("memory.max", "memory.current")
        if group.version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    limit = read_int(group.folder / names[0])
    if limit is None or limit >= 1 << 60:  # version 1 writes "no limit" as the largest number of pages
        return []
    return [(limit, read_int(group.folder / names[1]))]


def _meminfo(text: str) -> dict[str, int]:
    fields: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdigit():
            fields[words[0].rstrip(":")] = int(words[1]) * 1024
    return fields


def _total_without_proc() -> int | None:
    try:  # macOS and BSD
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _file_system_size(folder: Path) -> tuple[int | None, int | None]:
    try:
        stat = os.statvfs(folder)
    except (AttributeError, OSError):
        return None, None
    return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail
