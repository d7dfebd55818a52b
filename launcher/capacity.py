"""How many processes this machine can hold: its limits, and what each process of a launch takes of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..configs.errors import XlError
from .hardware.cgroups import find_cgroups
from .hardware.files import ROOT, read_int
from .hardware.memory import read_memory

MEMORY_EACH_MIB = 6
"""Memory of its own (Private_Dirty of its smaps_rollup) of a forked worker whose script has done nothing yet:
measured with torch 2.13 on Linux. No worker takes less; a plain script begins with 17, and what the training
needs comes on top, which nobody can know here."""

_LEAST_REFUSED = 2
"""One process runs anywhere: it is the script itself."""


class Limit(NamedTuple):
    """One limit of this machine.

    Args:
        counted: what is counted, in words.
        allowed: as many there may be.
        source: what sets the limit.
        each: as many one worker takes.
        beside: as many the launch takes itself.
    """

    counted: str
    allowed: int
    source: str
    each: int
    beside: int = 0

    def needed(self, num_workers: int) -> int:
        """As many as a launch of that many workers takes."""
        return num_workers * self.each + self.beside

    @property
    def most_workers(self) -> int:
        """As many workers as fit, at least one."""
        return max(1, (self.allowed - self.beside) // self.each)


def refusal(num_workers: int, place: str | None, limits: Sequence[Limit]) -> XlError | None:
    """Why this machine cannot hold that many workers, all reasons in one error; None: it may.

    Args:
        place: where the number comes from, if somebody gave it.
    """
    broken = [limit for limit in limits if limit.needed(num_workers) > limit.allowed]
    if num_workers < _LEAST_REFUSED or not broken:
        return None
    reasons = [f"{place or 'the default'} asks for {num_workers} processes, and there are limits to that"]
    reasons += [
        f"{limit.needed(num_workers)} {limit.counted} are needed, {limit.allowed} are there ({limit.source})"
        for limit in broken
    ]
    most = min(limit.most_workers for limit in broken)
    return XlError(
        f"num_processes={num_workers} does not fit this machine",
        "\n".join(reasons),
        f"pass --num-processes {most} or fewer, or raise the limits",
    )


def read_limits(root: Path = ROOT) -> tuple[Limit, ...]:
    """The limits that hold for a launch of this user; empty where the system does not tell."""
    return tuple(_limits(root)) if sys.platform == "linux" else ()


def _limits(root: Path) -> Iterator[Limit]:
    import resource  # not on Windows

    # The launcher holds a worker's log and its own ends of the two streams; beside them the standard streams,
    # two sockets, the run's lock, and what is open while a worker is started.
    yield Limit("open files", _rlimit(resource.RLIMIT_NOFILE), "ulimit -n", 3, 16)
    if os.geteuid() != 0:  # the kernel holds the administrator to no number
        yield _tasks(_rlimit(resource.RLIMIT_NPROC), "ulimit -u")
    for name in ("pid_max", "threads-max"):
        path = root / "proc/sys/kernel" / name
        if (most := read_int(path)) is not None:
            yield _tasks(most, str(path))
    for group in find_cgroups("pids", root):
        path = group.folder / "pids.max"
        if (most := read_int(path)) is not None:
            yield _tasks(most - (read_int(group.folder / "pids.current") or 0), f"{path} less those that run")
    memory = read_memory(root)
    if memory.usable_bytes is not None:
        mebibytes = (memory.usable_bytes + (memory.swap_total_bytes or 0)) >> 20
        limited = memory.usable_bytes == memory.limit_bytes
        source = "the control group's limit" if limited else "RAM"
        yield Limit("MiB of memory", mebibytes, f"{source} and swap", MEMORY_EACH_MIB)


def _tasks(allowed: int, source: str) -> Limit:
    """A limit on what the kernel counts as tasks: a worker, and two threads that copy its output."""
    return Limit("processes and threads", allowed, source, 3, 4)


def _rlimit(which: int) -> int:
    import resource

    soft, _ = resource.getrlimit(which)
    return 2**63 - 1 if soft == resource.RLIM_INFINITY else soft
