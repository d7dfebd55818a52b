"""How many CPU cores this process may use: its affinity, and the quotas of the control groups it is in."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores, at least 1. `root` is where `proc` and `sys` are, for tests."""
    return max(1, min([_allowed_cores(), *_quotas(root)]))


def _allowed_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[int]:
    """The quota, rounded up to cores, of every control group from ours to the top; the smallest counts."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _climb(root / "sys/fs/cgroup", path, _quota_v2)
            yield from _climb(root / "sys/fs/cgroup/unified", path, _quota_v2)
        elif "cpu" in controllers.split(","):
            yield from _climb(root / "sys/fs/cgroup/cpu", path, _quota_v1)
            yield from _climb(root / "sys/fs/cgroup" / controllers, path, _quota_v1)


def _climb(top: Path, path: str, quota: Callable[[Path], tuple[int, int]]) -> Iterator[int]:
    # Inside a container the path may be the host's and not exist here; the top then is our own group.
    group = PurePosixPath(path.lstrip("/"))
    for folder in [group, *group.parents]:
        microseconds, period = quota(top / folder)
        if microseconds > 0 and period > 0:
            yield math.ceil(microseconds / period)


def _quota_v2(folder: Path) -> tuple[int, int]:
    words = _read(folder / "cpu.max").split()
    return (int(words[0]), int(words[1])) if len(words) == 2 and words[0] != "max" else (0, 0)


def _quota_v1(folder: Path) -> tuple[int, int]:
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    return (int(quota), int(period)) if quota and period else (0, 0)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
